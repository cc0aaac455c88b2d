"""Stories of messages against closed formulas; tests/test_stories.py lays them beside real runs."""

import pytest
from every import every
from probes import Probe

from course_lib.theory.network import collectives
from course_lib.theory.network.all_reduce import all_reduce_ways
from course_lib.theory.network.collectives import tensor_parallel_bytes
from course_lib.theory.network.context import rank_scores
from course_lib.theory.network.experts import routed_bytes
from course_lib.theory.stories.messages import (
    ATTENTION,
    MLP,
    Tensor,
    expert_exchange,
    expert_steps,
    pair_steps,
    ring_attention_steps,
    ring_steps,
    skewed_exchange,
    tree_steps,
)

SKEWED = skewed_exchange(64, 8, 2, 4, skew=1.0, factor=1.25)


@every(("name", "steps"), [("ring", ring_steps), ("tree", tree_steps)])
@every("ranks", [2, 3, 4, 5, 7, 8, 16, 32])
def test_an_all_reduce_has_the_steps_the_bytes_and_the_ways_of_the_formulas(name, steps, ranks):
    size = ranks if name == "ring" else 1
    trace = steps(ranks)
    assert len(trace.times) - 1 == collectives.steps("all-reduce", ranks, name)
    (total,) = trace.sent().values()
    assert total.calls == collectives.messages("all-reduce", ranks, name)
    assert total.size_bytes == pytest.approx(
        ranks * collectives.sent_bytes("all-reduce", size, ranks)
    )
    ways = {}
    for one in trace:
        if one.to is not None:
            ways[one.who, one.to] = ways.get((one.who, one.to), 0) + one.bytes / size
    assert ways == pytest.approx(all_reduce_ways(ranks)[name].sent)


@every("ranks", [2, 3, 4, 8])
@every("zigzag", [False, True])
def test_ring_attention_has_the_scores_of_the_formula(ranks, zigzag):
    sequence = 48 * ranks
    assert ring_attention_steps(8, 2) == ring_attention_steps(8, 2, zigzag=False)
    trace = ring_attention_steps(sequence, ranks, zigzag=zigzag)
    work = [event.who for event in trace if event.what == "work"]
    block = (sequence // ranks // (2 if zigzag else 1)) ** 2
    for rank in range(ranks):
        assert work.count(rank) * block == rank_scores(sequence, rank, ranks, zigzag=zigzag)


def test_experts_send_the_bytes_of_the_formula():
    trace = expert_steps(SKEWED, 16)
    for rank in range(4):
        handed = sum(event.bytes for event in trace if event.part and event.what in ("copy", "stay")
                     and (event.who == rank or event.to == rank)) + sum(
            event.bytes for event in trace if event.what == "stay" and event.who == rank
        )  # fmt: skip
        assert handed == routed_bytes(SKEWED.kept, rank, 16)
    assert sum(SKEWED.received) + SKEWED.dropped == 4 * 64 * 2


def test_experts_take_turns():
    """Rows are accepted at 1, four turns from 2 on take them away; results go back from 7 on."""
    own = [event for event in expert_steps(SKEWED) if event.who == 0]
    taken = [(event.part[0], event.at) for event in own if event.what == "take"]
    sent = [(event.part[0], event.at) for event in own if event.what in ("copy", "stay")]
    assert sorted(taken) == [("results", 6)] * 4 + [("rows", 1)] * 4
    turns = [("results", at) for at in range(7, 11)] + [("rows", at) for at in range(2, 6)]
    assert sorted(sent) == turns
    assert [event.at for event in own if event.what in ("choose", "work", "sum")] == [0, 6, 11]


@every("by_tokens", [False, True])
def test_two_pairs_send_the_bytes_of_a_layer(by_tokens):
    sent = [
        collectives.sent_bytes(what, size, 8)
        for kind in (MLP, ATTENTION)
        for what, _, size in pair_steps(kind, 8192, 4096, 8, sequence_parallel=by_tokens).messages(
            0
        )
    ]
    assert sum(sent) == tensor_parallel_bytes(1, 4096, 8192, tp=8)


TABLES = [expert_exchange([[5, 1], [2, 2]], 6), expert_exchange([[5, 1], [2, 3]], 4)]
REFUSED = [
    (lambda: ring_attention_steps(65, 4), "sequence 65"),
    (lambda: expert_exchange([[1, 2], [3]], 4), r"counts\[1\] has 1 experts and counts\[0\] 2"),
    (lambda: pair_steps("mlp", 9, 8, 2), "hidden 9"),
    (lambda: pair_steps("mlp", 8, 9, 2, sequence_parallel=True), "tokens 9"),
    (lambda: pair_steps("norm", 8, 8, 2), "kind"),
]
PROBES = {
    "tree_steps": Probe(tree_steps, {"ranks": 3, "size_bytes": 4}),
    "expert_steps": Probe(expert_steps, {"exchange": TABLES[0]}, {"exchange": TABLES[1]}),
}
RECORDS = {"ExpertExchange": TABLES, "Tensor": [Tensor("X", 4, 8), Tensor("XA", 8, 16)]}
