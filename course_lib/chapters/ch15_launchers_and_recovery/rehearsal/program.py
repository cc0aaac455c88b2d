"""A transformer of any shape that the theory covers, its tensor-parallel plan, and one update.

It is made of real torch modules, so that `parallelize_module` and `fully_shard` do what they do in
training: each weight matrix is one `nn.Linear`, each norm a module. Rotary positions and dropout
are left out, since they have no weights and send nothing.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, debug
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu
from torch.optim import SGD, AdamW, Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from course_lib.measure.peak import tensor_bytes
from course_lib.measure.wire import log_wire
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.trace import Total
from course_lib.validation import divisible, told


class Attention(nn.Module):
    """Causal attention, optionally with fewer key-value heads than query heads (GQA)."""

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
    """An MLP of two matrices (GELU), or of three with a gate (SwiGLU)."""

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
    """One transformer layer: pre-norm attention and MLP, each with a residual."""

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
        """Share the embedding's weight with the head if the shape ties them."""
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
    """The normalization layer of `shape`: with weight and bias, weight only, or neither."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.hidden)
    return nn.LayerNorm(shape.hidden, elementwise_affine=shape.norm == "layernorm")


def cuts(shape: TransformerShape, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """The `parallelize_module` plan of a `Transformer`: torch's parallel styles by module name.

    q, k and v share one prepared input, and so do gate and up: otherwise each of them would
    all-reduce the gradient of that input separately.
    """
    tokens = Shard(1) if sequence_parallel else Replicate()  # layout between attention and MLP
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
        # Every rank looks up all positions and keeps the rows of its own tokens.
        plan["positions"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(0)
        )
    return plan


@contextmanager
def fake_world(rank: int, world: int) -> Iterator[FakeTensorMode]:
    """Make this process rank `rank` of `world` in a fake group whose collectives return at once.

    Nothing is sent, and no other rank exists. Tensors made under the yielded mode have shapes but
    no memory. Raises RuntimeError if this process is already in a process group.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "this process is in a process group, and a rehearsal needs one of its own: call "
            "launch.finish() first, or destroy the group where it was made"
        )
    hook = sys.excepthook  # init_process_group wraps it every time
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield FakeTensorMode()
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
        debug._clear_sharding_prop_cache()  # it refers to the groups of this world


_MOMENTS = {"adamw": "fp32", "momentum": "fp32", "adamw-bf16": "bf16"}  # must equal the weights'


# Field values that a job must have, since the rehearsed transformer is a plain one.
_PLAIN: Mapping[str, Mapping[str, object]] = {
    "shape": {"mla": None, "qk_norm": "none", "layer_norms": 2},
    "layout": {"pp": 1, "cp": 1, "ep": 1, "zero_stage": 3},
    "recipe": {
        "master_copy": False,
        "gradient_buffer": False,
        "recompute": "none",
        "offload": "none",
        "gathering": "fsdp",
    },
}


def check(job: Job) -> None:
    """Raise ValueError unless the FSDP2 and tensor-parallel code of this module can run `job`."""
    shape, tp, recipe = job.shape, job.layout.tp, job.recipe
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts} cannot be rehearsed, since what sends tokens to them is the "
            "model's own code and none of torch's: take a model with experts=0 for all that is no "
            "expert, run `course demo experts`, or count it by `course memory`"
        )
    for part, fields in _PLAIN.items():
        for name, standard in fields.items():
            if (value := getattr(getattr(job, part), name)) != standard:
                raise ValueError(
                    f"{name} {told(value)} cannot be rehearsed, the rehearsed transformer is a "
                    f"plain one: take a {part} with {name}={standard!r}"
                )
    divisible("kv_heads", shape.kv_heads, "tp", tp)
    if (tp - 1) * -(-shape.vocab // tp) >= shape.vocab:
        raise ValueError(
            f"vocab {shape.vocab} leaves the last of tp {tp} ranks without a word, which FSDP2 "
            f"refuses: take a vocab that {tp} divides"
        )
    if recipe.optimizer not in ("sgd", *_MOMENTS):
        raise ValueError(
            f"optimizer {recipe.optimizer!r} is not in torch: choose adamw, adamw-bf16, "
            "momentum or sgd"
        )
    precision = _MOMENTS.get(recipe.optimizer, recipe.parameters)
    if recipe.parameters != precision:
        raise ValueError(
            f"optimizer {recipe.optimizer!r} has moments in {precision}, and torch's have the "
            f"precision of the weights, {recipe.parameters}: set parameters={precision!r}, or "
            "another optimizer"
        )


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Observed:
    """Bytes that one rank stores, by kind, and its collectives, by axis and operation."""

    stored: dict[str, int]
    sent: dict[str, Total]


def one_update(job: Job, tensors: AbstractContextManager[Any]) -> Observed:
    """Run one update inside the process group; tensors are created and used under `tensors`."""
    layout, optimizer_name = job.layout, job.recipe.optimizer
    # The theory's rank order: tp innermost, then the shards, then their replicas.
    sizes = (layout.shard_groups, layout.shard_ranks, layout.tp)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "shards", "tp"))
    axes: dict[str, str] = {
        mesh[name].get_group().group_name: axis
        for name, axis in {"copies": "dp", "shards": "dp", "tp": "tp"}.items()
    }
    with tensors:
        model = _model(job)
    _cut(model, job, mesh)
    with tensors, log_wire() as log:
        # foreach=False: the foreach kernels reject tensors on different meshes.
        parameters = list(model.parameters())
        optimizer: Optimizer
        if optimizer_name.startswith("adamw"):
            optimizer = AdamW(parameters, foreach=False)
        else:
            momentum = 0.9 if optimizer_name == "momentum" else 0.0
            optimizer = SGD(parameters, momentum=momentum, foreach=False)
        for _ in _passes(job, cast(FSDPModule, model)):
            tokens = torch.zeros((layout.micro_batch, job.sequence), dtype=torch.int64)
            with loss_parallel():
                logits = model(tokens).flatten(0, 1).float()
                cross_entropy(logits, tokens.flatten()).backward()
        optimizer.step()
    states = optimizer.state.values()
    stored = {
        "weights": tensor_bytes(parameters),
        "gradients": tensor_bytes(p.grad for p in parameters if p.grad is not None),
        "moments": tensor_bytes(value for state in states for value in state.values()),
    }
    return Observed(stored, log.sent(axes))


def _model(job: Job) -> Transformer:
    """Build the model in the precision of the weights; fake tensors cannot be converted later."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[job.recipe.parameters])
    try:
        return Transformer(job.shape)
    finally:
        torch.set_default_dtype(default)


def _cut(model: Transformer, job: Job, mesh: DeviceMesh) -> None:
    """Shard the matrices over tp, then apply `fully_shard` to each layer and to the root."""
    layout, recipe = job.layout, job.recipe
    if layout.tp > 1:
        plan = cuts(job.shape, layout.sequence_parallel)
        parallelize_module(model, mesh["tp"], plan, src_data_rank=None)
        model.tie()  # embedding and head were sharded separately
    dp_mesh = mesh["copies", "shards"] if layout.shard_groups > 1 else mesh["shards"]
    policy = MixedPrecisionPolicy(
        param_dtype=DTYPES[recipe.compute or recipe.parameters],
        reduce_dtype=DTYPES[recipe.gradients],
    )
    for block in model.blocks:
        fully_shard(block, mesh=dp_mesh, mp_policy=policy, reshard_after_forward=layout.reshard)
    fully_shard(model, mesh=dp_mesh, mp_policy=policy, reshard_after_forward=False)


def _passes(job: Job, model: FSDPModule) -> Iterator[int]:
    """Yield each micro-batch's number, after setting whether it reduces gradients and reshards."""
    layout = job.layout
    for number in range(layout.passes):
        last = number == layout.passes - 1
        model.set_requires_gradient_sync(last or layout.reduces == "micro-batch")
        model.set_reshard_after_backward(last or layout.reshard)
        yield number
