"""A cut layer by hand, and who holds which heads."""

import pytest
import torch
from every import every

from course_lib.scratch.gpt import Attention
from course_lib.theory.inputs.hardware import NDR, PCIE4, Link, accelerator
from course_lib.theory.network.tensor_parallel import CutLayer, kv_copies, qkv_rows

H100 = accelerator("H100-SXM")
LAYER = CutLayer(8192, 8, H100.peak_flop_per_s, H100.inside)


def test_a_layer_of_70b_by_hand():
    assert LAYER.summed_bytes == 4096 * 8192 * 2
    assert LAYER.sent_bytes == 8 * 4096 * 8192 * 2 * 7 / 8
    assert LAYER.flop == 6 * 12 * 8192**2 * 4096 / 8
    assert LAYER.flop_per_byte == pytest.approx(4.5 * 8192 / 7)
    assert LAYER.flop_per_byte == pytest.approx(LAYER.flop / LAYER.sent_bytes)
    assert LAYER.compute_s == pytest.approx(2.5e-3, rel=1e-3)
    assert LAYER.communication_s == pytest.approx(
        LAYER.sent_bytes / 450e9 + 4 * 14 * H100.inside.latency_s
    )
    assert LAYER.seconds == LAYER.compute_s + LAYER.communication_s


@every("link", [PCIE4, NDR, H100.inside, Link("fast", 9e11)])
def test_at_the_reach_computing_still_takes_longer(link):
    """A second source of the closed form: the times themselves, without latency."""
    link = Link(link.name, link.bytes_per_s)
    reach = CutLayer(8192, 2, H100.peak_flop_per_s, link).layer_reach
    at, beyond = (CutLayer(8192, t, H100.peak_flop_per_s, link) for t in (reach, reach + 1))
    assert at.compute_s >= at.communication_s
    assert beyond.compute_s < beyond.communication_s


def test_rows_with_shared_and_with_copied_heads():
    assert qkv_rows(4, 2, 1, tp=2, rank=1) == [2, 3, 5, 7]
    assert [qkv_rows(4, 2, 1, tp=4, rank=rank) for rank in range(4)] == [
        [0, 4, 6], [1, 4, 6], [2, 5, 7], [3, 5, 7],
    ]  # fmt: skip


@every("ranks", [1, 2, 4])
def test_rows_of_all_ranks_are_those_of_the_scratch_attention(ranks):
    """The parts of q, k and v that heads / ranks heads need, as the whole attention splits them."""
    whole = Attention(hidden=16, heads=4).qkv.weight
    by_head = whole.view(3, 4, 4, 16)  # q, k, v; heads; width; hidden
    for rank in range(ranks):
        mine = by_head[:, rank * 4 // ranks : (rank + 1) * 4 // ranks].reshape(-1, 16)
        assert torch.equal(whole[qkv_rows(4, 4, 4, tp=ranks, rank=rank)], mine)


@every(("kv_heads", "tp", "copies"), [(8, 1, 1), (8, 8, 1), (8, 16, 2), (1, 4, 4)])
def test_copies(kv_heads, tp, copies):
    assert kv_copies(kv_heads, tp) == copies


REFUSED = [
    (lambda: qkv_rows(64, 8, 128, tp=12, rank=0), "heads 64 is not divisible by tp 12"),
    (lambda: qkv_rows(6, 4, 1, tp=2, rank=0), "heads 6 is not divisible by kv_heads 4"),
    (lambda: kv_copies(8, 12), "tp 12 is not divisible by kv_heads 8"),
    (lambda: kv_copies(8, 3), "kv_heads 8 is not divisible by tp 3"),
]
