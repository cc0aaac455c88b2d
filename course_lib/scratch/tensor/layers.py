"""Tensor parallelism: every rank holds a part of each matrix, and all tokens.

The first matrix of a pair is cut by columns, the second by rows, so that
nothing is exchanged in between: one sum at the end of each pair and pass.
Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.
"""

from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from course_lib.scratch.gpt import Attention, Block
from course_lib.scratch.tensor.region import TensorParallel


class ColumnParallelLinear(nn.Module):
    """Cut by outputs: (…, in) -> (…, out / ranks)."""

    def __init__(
        self, whole: nn.Linear, region: TensorParallel, parts: int = 1
    ) -> None:
        super().__init__()
        self.region = region
        self.weight = region.cut(whole.weight, 0, parts)
        self.bias = region.cut(whole.bias, 0, parts)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.region.enter(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Cut by inputs: (…, in / ranks) -> (…, out)."""

    def __init__(self, whole: nn.Linear, region: TensorParallel) -> None:
        super().__init__()
        self.region = region
        self.weight = region.cut(whole.weight, 1)
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        # The bias comes after the sum, or it would be added once per rank.
        return self.region.leave(linear(x, self.weight)) + self.bias


class ParallelAttention(nn.Module):
    """Attention with heads / ranks heads on each rank."""

    def __init__(self, whole: Attention, region: TensorParallel) -> None:
        super().__init__()
        if whole.heads % region.ranks:
            raise ValueError(
                f"heads {whole.heads} is not divisible by {region.ranks} ranks"
                ": take a number of ranks that divides the heads"
            )
        self.heads = whole.heads // region.ranks
        # The rows of q come first, then k, then v: cut each of the three.
        self.qkv = ColumnParallelLinear(whole.qkv, region, parts=3)
        self.out = RowParallelLinear(whole.out, region)

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        # (batch, sequence, 3, heads / ranks, width)
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, heads, sequence, width)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def cut_block(block: Block, region: TensorParallel) -> Block:
    """Cut a layer's attention and MLP in place; its norms stay whole."""
    attention = ParallelAttention(block.attention, region)
    block.add_module("attention", attention)
    up, gelu, down = block.mlp
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    block.mlp = nn.Sequential(
        ColumnParallelLinear(up, region), gelu, RowParallelLinear(down, region)
    )
    return block
