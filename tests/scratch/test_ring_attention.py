"""Ring attention equals torch's attention of the whole sequence, forward and backward."""

import weakref

import torch
import torch.distributed as dist
from together import sentence
from torch.nn.functional import scaled_dot_product_attention

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.context import (
    RingFunction,
    SequenceRing,
    block_forward,
    merge,
    ring_forward,
)

BATCH, HEADS, WIDTH = 2, 3, 5


def whole(sequence):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, BATCH, HEADS, sequence, WIDTH, generator=generator)


def expected(sequence):
    q, k, v, d_out = whole(sequence)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out.backward(d_out)
    return torch.stack([out.detach(), q.grad, k.grad, v.grad])


def run_ring(sequence, zigzag):
    ring = SequenceRing(dist.group.WORLD, zigzag)
    places = ring.places(sequence)
    q, k, v, d_out = (x[:, :, places].contiguous() for x in whole(sequence))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    with log_wire() as log:
        out = RingFunction.apply(q, k, v, ring, ring_forward)
        out.backward(d_out)
    return places, torch.stack([out.detach(), q.grad, k.grad, v.grad]), log.sent()


def test_equal_to_the_whole_sequence():
    ranks, sequence = 3, 24
    results = launch.run(run_ring, sequence, True, ranks=ranks)
    found = torch.empty(4, BATCH, HEADS, sequence, WIDTH)
    hop = 2 * 4 * BATCH * HEADS * WIDTH * sequence // ranks
    hops = 3 * (ranks - 1)  # keys and values twice, their gradients once
    for places, part, sent in results:
        found[..., places, :] = part
        assert sent == {"send-recv": (hops, hops * hop)}
    assert torch.allclose(found, expected(sequence), atol=2e-6)


def blocks_held():
    """Blocks on this rank while it works on each: its own, and those that came."""
    ring = SequenceRing(dist.group.WORLD)
    came, start = [], ring.start

    def noted(tensor):
        passing = start(tensor)
        came.append(weakref.ref(passing.coming))
        return passing

    ring.start = noted
    return [1 + sum(block() is not None for block in came) for _ in ring.visits(torch.zeros(1))]


def other_rings():
    """Blocks that are held at most; the visitors of two rings side by side; two refusals."""
    most = max(blocks_held())
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = launch.init().rank
    pair = SequenceRing(groups[rank // 2])
    visitors = [int(tensor) for _, tensor in pair.visits(torch.tensor([rank]))]
    uneven = [sentence(run_ring, 25, zigzag) for zigzag in (False, True)]
    return most, visitors, uneven


def test_a_ring_holds_three_blocks_stays_in_its_group_and_refuses_uneven_slices():
    most, visitors, uneven = zip(*launch.run(other_rings, ranks=4), strict=True)
    assert set(most) == {3}  # a rank's own block, the visitor, and the next one
    assert visitors == ([0, 1], [1, 0], [2, 3], [3, 2])
    for said, chunks in zip(uneven[0], (4, 8), strict=True):
        assert f"sequence 25 is not divisible into {chunks}" in said


def test_large_scores_do_not_overflow():
    q, k, v, _ = whole(6)
    out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
    merge(out, lse, block_forward(1e4 * q, k, v, same=True))
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
