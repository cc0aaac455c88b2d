"""Build 6.12: all-reduce up and down a tree of ranks."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_tensor
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.collectives import messages, steps

if TYPE_CHECKING:
    from torch import Tensor

    from course_lib.scratch.collectives.peers import Peers

# What one rank does in a round: whom it sends to and whom it receives from, or None.
_Round = tuple[int | None, int | None]


# Shape and dtype of a tensor, and whether a group of all ranks but 1 adds it up.
_Case = tuple[tuple[int, ...], str, bool]
_CASES: tuple[_Case, ...] = (((7,), "float32", False), ((2, 3), "bfloat16", False))
_IN_GROUP: _Case = ((), "int64", True)


def _own(rank: int, case: _Case) -> "Tensor":
    import torch

    shape, dtype, _ = case
    numbers = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
    if dtype == "float32":
        return numbers * 10.0**rank
    return (numbers * (rank + 1)).to(getattr(torch, dtype))  # bf16 has all sums


def _noting_peers(group: Any) -> "tuple[Peers, list[_Round]]":
    """The ranks, and a list that fills with what this one does."""
    from course_lib.scratch.collectives.peers import Peers

    rounds: list[_Round] = []

    class Noting(Peers):
        def swap(self, out: "Tensor", to: int, into: "Tensor", source: int) -> None:
            rounds.append((to % self.ranks, source % self.ranks))
            super().swap(out, to, into, source)

        def send(self, out: "Tensor", to: int) -> None:
            rounds.append((to % self.ranks, None))
            super().send(out, to)

        def receive(self, into: "Tensor", source: int) -> None:
            rounds.append((None, source % self.ranks))
            super().receive(into, source)

    return Noting(group), rounds


def _reduced(
    function: Any, cases: Sequence[_Case]
) -> list[tuple[Any, str, list[_Round], int, int]]:
    """On a rank, in each case: the result, what has changed, its rounds, calls and bytes sent.

    The second is a sentence of what must not change, "" for nothing.
    """
    import torch

    from course_lib.checking.builds.on_rank.traffic import in_case, own_group
    from course_lib.measure.wire import log_wire

    found: list[tuple[Any, str, list[_Round], int, int]] = []
    for case in cases:
        peers, rounds = _noting_peers(own_group() if case[2] else None)
        own = _own(peers.rank, case)
        with log_wire() as log, in_case(_words(case)):
            total = function(own, peers)
        calls, size = log.sent().get("send-recv", (0, 0))
        changed = "" if own.equal(_own(peers.rank, case)) else "`tensor` has changed: add to a copy"
        if not found and isinstance(total, torch.Tensor):
            before = total.clone()
            function(own + 1, _noting_peers(None)[0])
            if not changed and not total.equal(before):
                total, changed = (
                    before,
                    "what one call has returned is changed by the next: return a new tensor",
                )
        found.append((total, changed, rounds, calls, size))
    return found


def _words(case: _Case) -> str:
    shape, dtype, in_group = case
    group = ", in a group without rank 1" if in_group else ""
    return f"shape {shape} in {dtype}{group}"


def _check(function: Any, ranks: int, *more: _Case) -> None:
    cases = *_CASES, *more
    outcomes = each_rank(on_ranks(_reduced, function, cases, ranks=ranks))
    for place, case in enumerate(cases):
        found = [(name, value[place]) for name, value in outcomes]
        if case[2]:
            _expect(found[1:2], case)
            found = [found[0], *found[2:]]
        _expect(found, case)


def _expect(found: list[tuple[str, Any]], case: _Case) -> None:
    import torch

    ranks = len(found)
    own = [_own(rank, case) for rank in range(ranks)]
    expected = torch.stack(own).sum(0)
    for rank, (name, (total, changed, *_)) in enumerate(found):
        what = name if case == _CASES[0] else f"{name}, {_words(case)}"
        reached = {
            f"the sum of ranks {rank} to {last}": torch.stack(own[rank : last + 1]).sum(0)
            for last in range(rank + 1, ranks)
        }
        expect_tensor(
            total,
            expected,
            f"{what}: the result",
            factors={1 / ranks: "the mean over ranks, where the sum is wanted"},
            others={"what this rank itself had": own[rank], **reached},
        )
        if total.dtype != expected.dtype:
            raise Wrong(f"{what}: the result is {total.dtype}, expected that of `tensor`")
        if changed:
            raise Wrong(f"{name}: {changed}")
    if ranks == 1:
        return
    _expect_tree([rounds for _, (_, _, rounds, *_) in found])
    for _, (*_, calls, size) in found:
        if size > calls * expected.nbytes:
            raise Wrong(f"on {ranks} ranks a message is more than the whole tensor")


def _expect_tree(rounds: list[list[_Round]]) -> None:
    """The messages and the steps of a tree, as the theory has them."""
    ranks = len(rounds)
    sent = sum(to is not None for own in rounds for to, _ in own)
    if sent != (right := messages("all-reduce", ranks, "tree")):
        much = "more" if sent > right else "fewer"
        raise Wrong(
            f"{ranks} ranks send {sent} messages, {much} than a tree: each child sends once up, "
            "and each parent once down to each child"
        )
    sends = [to is not None for to, _ in rounds[0]]
    if sends != sorted(sends):
        raise Wrong(f"on {ranks} ranks, rank 0 sends before it has the whole sum: it is the root")
    taken, right = _steps(rounds), steps("all-reduce", ranks, "tree")
    if taken > right:
        raise Wrong(
            f"on {ranks} ranks {taken} messages follow each other, where a tree has {right}: let "
            "pairs of ranks work at the same time"
        )


def _steps(rounds: Sequence[list[_Round]]) -> int:
    """How many rounds follow each other, if both ends of a message take part in the same one."""
    done, place = [0] * len(rounds), [0] * len(rounds)
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(rounds):
            to, source = own[place[rank]] if place[rank] < len(own) else (None, None)
            other = source if to is None else to
            if other is None or place[other] == len(rounds[other]):
                continue
            if rank in rounds[other][place[other]]:
                done[rank] = done[other] = 1 + max(done[rank], done[other])
                place[rank], place[other] = place[rank] + 1, place[other] + 1
                moved = True
    return max(done)


def _powers_of_two(parts: SimpleNamespace) -> None:
    for ranks in (2, 4):
        _check(parts.tree_all_reduce, ranks)


def _any_number(parts: SimpleNamespace) -> None:
    _check(parts.tree_all_reduce, 3)
    _check(parts.tree_all_reduce, 5, _IN_GROUP)


def _prepared(parts: SimpleNamespace) -> Any:
    """Four million numbers."""
    import torch

    from course_lib.scratch.collectives.peers import Peers

    peers, whole = Peers(), torch.ones(4_000_000)
    return lambda: parts.tree_all_reduce(whole, peers)


def _by_torch() -> Any:
    import torch

    from course_lib.scratch import wire

    whole = torch.ones(4_000_000)
    return lambda: wire.all_reduce(whole)


TREE = build(
    "tree",
    title="a tree of messages",
    hints=(
        "Up: in each round half of the ranks that still take part hand over what they have.",
        "The distance between child and parent is 1 in the first round, then 2, 4, … below n.",
        "At distance d, rank r is a child if r % (2·d) is d; its parent is r - d.",
        "A parent without a child (r + d is not a rank) waits for nobody. Down: the distances from "
        "the largest to 1, and the child receives.",
    ),
    steps=(
        Step("2 and 4 ranks", ("tree_all_reduce",), _powers_of_two),
        Step("3 and 5 ranks", ("tree_all_reduce",), _any_number),
    ),
    race=Race("all-reduce of 16 MB", _prepared, _by_torch),
)
