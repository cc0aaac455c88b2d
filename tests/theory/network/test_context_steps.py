"""Ring attention step by step: the order of the course's own ring, and its sums by formula."""

import pytest
import torch
import torch.distributed as dist
from every import every
from probes import Probe

from course_lib import launch
from course_lib.scratch.context.slices import SequenceRing
from course_lib.theory.network.context import rank_scores
from course_lib.theory.network.context_steps import ring_attention_steps


def visited(zigzag):
    """By step: whose keys this rank has (as they say themselves), and the chunks that meet."""
    rank = launch.init().rank
    ring = SequenceRing(dist.group.WORLD, zigzag)
    found = []
    for owner, visitor in ring.visits(torch.tensor([rank])):
        mine, theirs = ring.chunks(rank), ring.chunks(owner)
        pairs = [(mine[i], theirs[j], same) for i, j, same in ring.pairs(owner)]
        found.append((int(visitor), pairs))
    return found


@every("ranks", [2, 4])
@every("zigzag", [False, True])
def test_the_steps_are_those_of_the_courses_ring(ranks, zigzag):
    by_rank = launch.run(visited, zigzag, ranks=ranks)
    result = ring_attention_steps(64, ranks, zigzag=zigzag)
    for rank in range(ranks):
        assert by_rank[rank] == [
            (step.owners[rank], [(b.queries, b.keys, b.masked) for b in step.blocks[rank]])
            for step in result.steps
        ]


@every("ranks", [2, 3, 4, 8])
@every("zigzag", [False, True])
def test_the_sums_are_those_of_the_formula(ranks, zigzag):
    sequence = 48 * ranks
    result = ring_attention_steps(sequence, ranks, zigzag=zigzag)
    formula = [rank_scores(sequence, rank, ranks, zigzag=zigzag) for rank in range(ranks)]
    assert list(result.rank_scores) == formula
    assert result.lasting_scores == max(formula)
    assert result.busy_fraction == pytest.approx(1 if zigzag else (ranks + 1) / (2 * ranks))
    blocks = [block for step in result.steps for own in step.blocks for block in own]
    count = result.chunk_count
    assert len(blocks) == len(set(blocks)) == count * (count + 1) // 2


PROBES = {
    "ring_attention_steps": Probe(
        ring_attention_steps,
        {"sequence": 64, "ranks": 4},
        {"sequence": 128, "ranks": 2, "zigzag": True},
    ),
    "RingAttentionSteps.scores": Probe(
        lambda step: ring_attention_steps(64, 4).scores(step), {"step": 0}, {"step": 3}
    ),
}
RESULTS = [ring_attention_steps(64, 4), ring_attention_steps(32, 2, zigzag=True)]
RECORDS = {
    "ScoreBlock": [RESULTS[0].steps[0].blocks[0][0], RESULTS[0].steps[1].blocks[3][0]],
    "RingStep": list(RESULTS[0].steps),
    "RingAttentionSteps": RESULTS,
}
