"""A transformer's layer, of which every rank holds a part of each matrix.

Attention and MLP are a pair each: one sum at its end in each pass.
Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.
"""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from course_lib.scratch.gpt import Attention, Block
from course_lib.scratch.tensor.region import TensorParallel


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
        self.qkv = region.pair.column(whole.qkv, region, parts=3)
        self.out = region.pair.row(whole.out, region)

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
        region.pair.column(up, region), gelu, region.pair.row(down, region)
    )
    return block
