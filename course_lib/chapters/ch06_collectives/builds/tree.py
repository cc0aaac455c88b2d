"""Build 6.12: all-reduce up and down a tree of ranks."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from course_lib.checking.build import build
from course_lib.checking.builds.compare import (
    Case,
    Must,
    Never,
    Place,
    Row,
    compare,
    later,
    torch,
)
from course_lib.checking.races import Race
from course_lib.theory.stories.messages import tree_steps
from course_lib.trace import SEND

_peers, _wire = later("course_lib.scratch.collectives"), later("course_lib.measure.wire")

# What one rank does in a round: whom it sends to and whom it receives from, or None.
_Round = tuple[int | None, int | None]


@dataclass(frozen=True)
class _Numbers(Case):
    """A tensor of one shape and dtype on every rank."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def words(self, _: Sequence[int]) -> str:
        group = ", in a group without rank 1" if self.in_group else ""
        return f"shape {self.shape} in {self.dtype}{group}"

    def own(self, rank: int) -> "torch.Tensor":
        """What a rank gives."""
        numbers = torch.arange(1.0, 1 + math.prod(self.shape)).view(self.shape)
        if self.dtype == "float32":
            return numbers * 10.0**rank
        return (numbers * (rank + 1)).to(getattr(torch, self.dtype))  # bf16 has all sums


@dataclass
class _Seen:
    """What a rank found: the result, and what it did for it."""

    total: Any = None
    kept: bool = True  # the argument
    stays: bool = True  # the result, when the function is called again
    rounds: list[_Round] = field(default_factory=list)
    sent: tuple[int, int] = (0, 0)  # calls and bytes


def _noting_peers(group: Any, rounds: list[_Round]) -> Any:
    """The ranks; they write down what this one does."""

    kind: Any = _peers.Peers

    class Noting(kind):
        def swap(self, out: Any, to: int, into: Any, source: int) -> None:
            rounds.append((to % self.ranks, source % self.ranks))
            super().swap(out, to, into, source)

        def send(self, out: Any, to: int) -> None:
            rounds.append((to % self.ranks, None))
            super().send(out, to)

        def receive(self, into: Any, source: int) -> None:
            rounds.append((None, source % self.ranks))
            super().receive(into, source)

    return Noting(group)


def _run(parts: SimpleNamespace, case: _Numbers, group: Any) -> _Seen:
    seen = _Seen()
    peers = _noting_peers(group, seen.rounds)
    own = case.own(peers.rank)
    with _wire.log_wire() as log:
        seen.total = parts.tree_all_reduce(own, peers)
    seen.sent = log.sent().get("send-recv", (0, 0))
    seen.kept = own.equal(case.own(peers.rank))
    if case.dtype == "float32" and isinstance(seen.total, torch.Tensor):
        before = seen.total.clone()
        parts.tree_all_reduce(own + 1, _noting_peers(group, []))
        seen.total, seen.stays = before, seen.total.equal(before)
    return seen


def _rows(seen: _Seen, at: Place) -> Iterator[Row]:
    own = torch.stack([at.case.own(rank) for rank in range(at.ranks)])
    right = own.sum(0)
    others = {"what this rank itself had": own[at.rank]} | {
        f"the sum of ranks {at.rank} to {last}": own[at.rank : last + 1].sum(0)
        for last in range(at.rank + 1, at.ranks)
    }
    mean = {1 / at.ranks: "the mean over ranks, where the sum is wanted"}
    yield Must("the result", seen.total, right, others, mean)
    kind = seen.total.dtype
    yield Never(kind != right.dtype, f"the result is {kind}, expected that of `tensor`")
    yield Never(not seen.kept, "`tensor` has changed: add to a copy")
    yield Never(
        not seen.stays, "what one call has returned is changed by the next: return a new tensor"
    )


def _a_tree(found: list[_Seen], case: _Numbers) -> Iterator[Row]:
    """The messages and the steps of a tree, as the theory tells them."""
    ranks, rounds = len(found), [seen.rounds for seen in found]
    if ranks == 1:
        return
    trace = tree_steps(ranks)
    sent, right = sum(to is not None for own in rounds for to, _ in own), trace.sent()[SEND].calls
    much = "more" if sent > right else "fewer"
    yield Never(
        sent != right,
        f"{ranks} ranks send {sent} messages, {much} than a tree: each child sends once up, and "
        "each parent once down to each child",
    )
    sends = [to is not None for to, _ in rounds[0]]
    yield Never(sends != sorted(sends), "rank 0 sends before it has the whole sum: it is the root")
    taken, right = _steps(rounds), int(trace.times[-1])
    yield Never(
        taken > right,
        f"{taken} messages follow each other, where a tree has {right}: let pairs of ranks work at "
        "the same time",
    )
    whole = case.own(0).nbytes
    large = any(size > calls * whole for calls, size in (seen.sent for seen in found))
    yield Never(large, "a message is more than the whole tensor")


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


def _cases(*ranks: int) -> tuple[_Numbers, ...]:
    return tuple(
        _Numbers(shape, dtype, ranks=n)
        for n in ranks
        for shape, dtype in (((7,), "float32"), ((2, 3), "bfloat16"))
    )


_ANY = *_cases(3, 5), _Numbers((), "int64", ranks=5, in_group=True)
_NEEDS = ("tree_all_reduce",)

_peers = later("course_lib.scratch.collectives")
_wire = later("course_lib.scratch.wire")


def _of_16_mb(work: Callable[[Any], object]) -> Callable[[], object]:
    whole = torch.ones(4_000_000)
    return lambda: work(whole)


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
        compare("2 and 4 ranks", _NEEDS, _run, _rows, _cases(2, 4), last=_a_tree),
        compare("3 and 5 ranks", _NEEDS, _run, _rows, _ANY, last=_a_tree),
    ),
    race=Race(
        "all-reduce of 16 MB",
        lambda parts: partial(parts.tree_all_reduce, torch.ones(4_000_000), _peers.Peers()),
        lambda: _of_16_mb(_wire.all_reduce),
    ),
)
