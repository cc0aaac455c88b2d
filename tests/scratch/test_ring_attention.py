"""Ring attention equals torch's attention of the whole sequence, forward and backward."""

import weakref

import pytest
import torch
import torch.distributed as dist
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
    pairs = sum(len(list(ring.pairs(owner))) for owner in range(ring.ranks))
    return places, torch.stack([out.detach(), q.grad, k.grad, v.grad]), log.sent(), pairs


@pytest.mark.parametrize(("ranks", "zigzag"), [(1, False), (3, True), (4, False)])
def test_equal_to_the_whole_sequence(ranks, zigzag):
    sequence = 24
    results = launch.run(run_ring, sequence, zigzag, ranks=ranks)
    found = torch.empty(4, BATCH, HEADS, sequence, WIDTH)
    for places, part, _, _ in results:
        found[..., places, :] = part
    assert torch.allclose(found, expected(sequence), atol=2e-6)
    hop = 2 * 4 * BATCH * HEADS * WIDTH * sequence // ranks
    hops = 3 * (ranks - 1)  # keys and values twice, their gradients once
    assert all(sent == ({"send-recv": (hops, hops * hop)} if hops else {})
               for _, _, sent, _ in results)  # fmt: skip


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


@pytest.mark.parametrize(("ranks", "most"), [(2, 2), (4, 3)])
def test_a_rank_holds_its_own_block_the_visitor_and_the_next(ranks, most):
    assert {max(held) for held in launch.run(blocks_held, ranks=ranks)} == {most}


def ring_in_pairs():
    """Two rings side by side: each has its own neighbours."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = launch.init().rank
    ring = SequenceRing(groups[rank // 2])
    return [int(tensor) for _, tensor in ring.visits(torch.tensor([rank]))]


def test_a_ring_stays_in_its_group():
    assert launch.run(ring_in_pairs, ranks=4) == [[0, 1], [1, 0], [2, 3], [3, 2]]


@pytest.mark.parametrize(("zigzag", "chunks"), [(False, 2), (True, 4)])
def test_an_uneven_sequence_is_explained(zigzag, chunks):
    with pytest.raises(launch.RankFailed, match=f"sequence 25 is not divisible into {chunks}"):
        launch.run(run_ring, 25, zigzag, ranks=2)


def test_large_scores_do_not_overflow():
    q, k, v, _ = whole(6)
    out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
    merge(out, lse, block_forward(1e4 * q, k, v, same=True))
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
