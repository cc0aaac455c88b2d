"""Tokens on their way: what the course's own dispatcher sends, and who is dropped."""

import pytest
import torch
import torch.distributed as dist
from probes import Probe

from course_lib import launch
from course_lib.scratch.collectives.peers import Peers
from course_lib.scratch.collectives.ring import all_to_all
from course_lib.scratch.experts.mixture import MoE
from course_lib.theory.network.expert_steps import expert_exchange, skewed_exchange
from course_lib.theory.network.experts import routed_bytes

EXPERTS, RANKS, TOKENS = 8, 4, 32


def dispatched(factor):
    """Counts, kept, sent and received rows of this rank for one forward pass."""
    rank = launch.init().rank
    torch.manual_seed(0)
    moe = MoE(hidden=8, experts=EXPERTS, top_k=2, capacity_factor=factor)
    moe.spread(dist.group.WORLD)
    torch.manual_seed(rank)
    moe(torch.randn(TOKENS, 8) + 0.5)
    dispatcher = moe.dispatcher
    return moe.counts.tolist(), moe.kept.tolist(), dispatcher.sent, dispatcher.received


@pytest.mark.parametrize("factor", [None, 1.0])
def test_the_tables_are_those_of_the_courses_mixture(factor):
    by_rank = launch.run(dispatched, factor, ranks=RANKS)
    counts, kept, _, _ = by_rank[0]
    choices = RANKS * TOKENS * 2
    limit = choices if factor is None else choices // EXPERTS
    result = expert_exchange(counts, limit)
    assert [list(row) for row in result.kept] == kept
    for rank, (_, _, sent, received) in enumerate(by_rank):
        assert list(result.sent[rank]) == sent
        assert [row[rank] for row in result.sent] == received
        assert result.received[rank] == sum(received)
    assert (result.dropped > 0) == (factor is not None)


class Told(Peers):
    """Peers that note each message of this rank: to whom, and from whom."""

    def __init__(self):
        super().__init__()
        self.swaps = []

    def swap(self, out, to, into, source):
        self.swaps.append((to, source))
        super().swap(out, to, into, source)


def there_and_back():
    """The messages of a dispatch and of a combine, and whether every row has come home."""
    launch.init()
    dispatch, combine = Told(), Told()
    rows = dispatch.rank * RANKS + torch.arange(RANKS)
    home = all_to_all(all_to_all(rows, dispatch), combine)
    return dispatch.swaps, combine.swaps, torch.equal(home, rows)


def test_turns_are_those_of_the_scratch_exchange():
    result = expert_exchange([[1] * EXPERTS] * RANKS, 100)
    for rank, (dispatch, combine, home) in enumerate(launch.run(there_and_back, ranks=RANKS)):
        assert home and len(dispatch) == len(combine) == RANKS - 1
        for turn in range(1, RANKS):
            pairs = result.partners(turn)
            for to, source in (dispatch[turn - 1], combine[turn - 1]):
                assert (rank, to) in pairs and (source, rank) in pairs
        for expert in range(EXPERTS):
            owner = expert // result.experts_of_a_rank
            sent = [rank, *(to for to, _ in dispatch)]
            returned = [rank, *(source for _, source in combine)]
            assert result.turn("dispatch", rank, expert) == sent.index(owner)
            assert result.turn("combine", rank, expert) == returned.index(owner)


def events():
    """What happens in one forward pass of the mixture, in its order."""
    launch.init()
    moe, seen = MoE(hidden=8, experts=EXPERTS, top_k=2), []
    moe.spread(dist.group.WORLD)

    def noted(call, name):
        def wrapped(*given):
            result = call(*given)
            seen.append(name)
            return result

        return wrapped

    moe.router.register_forward_hook(lambda *_: seen.append("chosen"))
    for expert in moe.experts.values():
        expert.register_forward_hook(lambda *_: seen.append("compute"))
    for name, told in {
        "count": "accepted", "all_to_all": "dispatch or combine", "combine": "summed"
    }.items():  # fmt: skip
        setattr(moe.dispatcher, name, noted(getattr(moe.dispatcher, name), told))
    moe(torch.randn(1, TOKENS, 8))
    return [name for name, before in zip(seen, [None, *seen], strict=False) if name != before]


def test_stages_are_those_of_a_run():
    names = [stage.name for stage in expert_exchange([[1, 1], [1, 1]], 9).stages]
    expected = ["dispatch or combine" if it in ("dispatch", "combine") else it for it in names]
    once = [it for it, last in zip(expected, [None, *expected], strict=False) if it != last]
    assert launch.run(events, ranks=2) == [once] * 2


def test_bytes_and_sums():
    result = skewed_exchange(64, 8, 2, 4, skew=1.0, factor=1.25)
    for rank in range(4):
        handed = 2 * (sum(result.sent[rank]) + result.received[rank])
        assert handed * 16 == routed_bytes(result.kept, rank, 16)
    assert sum(result.received) + result.dropped == 4 * 64 * 2
    assert max(map(sum, zip(*result.kept, strict=True))) == result.capacity == 80
    names = [stage.name for stage in result.stages]
    assert names.count("dispatch") == names.count("combine") == 4 and len(names) == 12
    meetings = [pair for step in range(4) for pair in result.partners(step)]
    assert sorted(meetings) == [(a, b) for a in range(4) for b in range(4)]


def test_uneven_tables_are_refused():
    with pytest.raises(ValueError, match=r"counts\[1\] has 1 experts and counts\[0\] 2"):
        expert_exchange([[1, 2], [3]], 4)


PROBES = {
    "expert_exchange": Probe(
        expert_exchange,
        {"counts": [[5, 1], [2, 2]], "limit": 6},
        {"counts": [[5, 1], [2, 3]], "limit": 4},
    ),
    "skewed_exchange": Probe(
        skewed_exchange,
        {"tokens": 64, "experts": 8, "top_k": 2, "ranks": 4, "skew": 0.5, "factor": 1.0},
        {"tokens": 32, "experts": 4, "top_k": 1, "ranks": 2, "skew": 1.0, "factor": 2.0},
    ),
    "ExpertExchange.partners": Probe(
        lambda step: expert_exchange([[1, 1], [1, 1]], 9).partners(step), {"step": 0}, {"step": 1}
    ),
    "ExpertExchange.turn": Probe(
        lambda name, rank, expert: expert_exchange([[1] * 3] * 3, 9).turn(name, rank, expert),
        {"name": "dispatch", "rank": 0, "expert": 1},
        {"name": "combine", "rank": 1, "expert": 2},
    ),
}
RECORDS = {
    "Stage": list(expert_exchange([[1, 1], [1, 1]], 9).stages),
    "ExpertExchange": [
        expert_exchange([[5, 1], [2, 2]], 6),
        expert_exchange([[5, 1], [2, 3]], 4),
    ],
}
