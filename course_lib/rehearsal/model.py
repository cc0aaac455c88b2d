"""A transformer of any shape that the theory knows, and where tensor parallelism cuts it.

Real torch modules, so that `parallelize_module` and `fully_shard` meet what they meet in training:
each weight matrix is one `nn.Linear`, each norm a module. Left out is what has neither weights nor
messages: rotary positions and dropout.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from course_lib.theory.inputs.shape import TransformerShape


class Attention(nn.Module):
    """Causal attention, whose key-value heads may be fewer than its query heads."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.width = shape.head_width
        queries, bias = shape.heads * self.width, shape.qkv_biases
        self.q = nn.Linear(shape.hidden, queries, bias=bias)
        self.k = nn.Linear(shape.hidden, shape.kv_width, bias=bias)
        self.v = nn.Linear(shape.hidden, shape.kv_width, bias=bias)
        self.out = nn.Linear(queries, shape.hidden, bias=shape.output_bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class MLP(nn.Module):
    """Two matrices, or three where one of them is a gate."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.gated = shape.mlp == "swiglu"
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=shape.biases)
        if self.gated:
            self.gate = nn.Linear(shape.hidden, shape.ffn, bias=shape.biases)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        wide = silu(self.gate(x)) * self.up(x) if self.gated else gelu(self.up(x))
        result: Tensor = self.down(wide)
        return result


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(shape), norm(shape)
        self.attention, self.mlp = Attention(shape), MLP(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Tokens (batch, sequence) in, logits (batch, sequence, vocab) out."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = (
            nn.Embedding(shape.context, shape.hidden) if shape.learned_positions else None
        )
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.tied = shape.tied_embeddings
        self.tie()

    def tie(self) -> None:
        """Make the head the embedding, where the shape says so."""
        if self.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def norm(shape: TransformerShape) -> nn.Module:
    """The norm of the shape: with weight and bias, with a weight, or with neither."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.hidden)
    return nn.LayerNorm(shape.hidden, elementwise_affine=shape.norm == "layernorm")


def cuts(shape: TransformerShape, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """Where `parallelize_module` cuts a `Transformer`: torch's own styles, by name of the module.

    The input of q, k and v, and that of gate and up, is prepared once for all of them: else each
    would sum the gradient of that input for itself.
    """
    tokens = Shard(1) if sequence_parallel else Replicate()  # between attention and MLP
    prepared = PrepareModuleInput(input_layouts=tokens, desired_input_layouts=Replicate())
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "blocks.*.attention": prepared,
        "blocks.*.attention.q": ColwiseParallel(),
        "blocks.*.attention.k": ColwiseParallel(),
        "blocks.*.attention.v": ColwiseParallel(),
        "blocks.*.attention.out": RowwiseParallel(output_layouts=tokens),
        "blocks.*.mlp": prepared,
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=tokens),
        "head": ColwiseParallel(
            input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if shape.mlp == "swiglu":
        plan["blocks.*.mlp.gate"] = ColwiseParallel()
    if sequence_parallel:
        plan |= dict.fromkeys(("blocks.*.norm1", "blocks.*.norm2", "norm"), SequenceParallel())
    if sequence_parallel and shape.learned_positions:
        # Every rank looks up all positions and keeps those of its own tokens.
        plan["positions"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(0)
        )
    return plan
