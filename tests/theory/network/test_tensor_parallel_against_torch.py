"""The rows of a fused matrix against torch's own attention."""

import torch
from every import every

from course_lib.scratch.gpt import Attention
from course_lib.theory.network.tensor_parallel import qkv_rows


@every("ranks", [1, 2, 4])
def test_rows_of_all_ranks_are_those_of_the_scratch_attention(ranks):
    """The parts of q, k and v that heads / ranks heads need, as the whole attention splits them."""
    whole = Attention(hidden=16, heads=4).qkv.weight
    by_head = whole.view(3, 4, 4, 16)  # q, k, v; heads; width; hidden
    for rank in range(ranks):
        mine = by_head[:, rank * 4 // ranks : (rank + 1) * 4 // ranks].reshape(-1, 16)
        assert torch.equal(whole[qkv_rows(4, 4, 4, tp=ranks, rank=rank)], mine)
