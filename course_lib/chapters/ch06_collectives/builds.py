"""Builds of chapter 6: collectives around a ring of ranks (6.11), and up and down a tree (6.12)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from course_lib.checking.build import build
from course_lib.checking.builds.compare import Case, Place, compare
from course_lib.checking.builds.lazily import later, torch
from course_lib.checking.builds.rows import Must, Never, Row, Sends, others_parts
from course_lib.checking.races import Race
from course_lib.theory.stories.messages import ring_steps, tree_steps
from course_lib.trace import ADD, COPY, SEND, Trace

_wire = later("course_lib.measure.wire")
_scratch_wire = later("course_lib.scratch.wire")
_peers = later("course_lib.scratch.collectives")


@dataclass(frozen=True)
class _Tensor(Case):
    """A tensor of one shape and dtype, with different numbers on each rank."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def words(self, _: Sequence[int]) -> str:
        group = ", in a group without rank 1" if self.in_group else ""
        return f"shape {self.shape} in {self.dtype}{group}"

    def tensor(self, rank: int) -> "torch.Tensor":
        """The tensor that `rank` contributes."""
        numbers = torch.arange(1.0, 1 + math.prod(self.shape)).view(self.shape)
        if self.dtype == "float32":
            return numbers * float(10**rank)
        return ((numbers % 7 + 1) * (rank + 1)).to(getattr(torch, self.dtype))  # exact in bf16

    def total(self, ranks: int) -> "torch.Tensor":
        """The sum of the tensors of all ranks."""
        return torch.stack([self.tensor(rank) for rank in range(ranks)]).sum(0)


# --- 6.11: ring ---------------------------------------------------------------------------------


class _Result(NamedTuple):
    """A rank's result, whether the argument is unchanged, its messages, and collectives called."""

    result: Any
    kept: bool
    log: Any
    collectives: list[str]  # calls of torch's collectives


def _run_ring(parts: SimpleNamespace, case: _Tensor, group: Any, gathers: bool = False) -> _Result:
    peers, collectives = _peers.Peers(group), list[str]()
    rank, ranks, function = peers.rank, peers.ranks, parts.ring_reduce_scatter
    argument, rows = case.tensor(rank), tuple[int, ...]()
    if gathers:
        function, argument = parts.ring_all_gather, _part(case, rank, ranks).clone()
        rows = case.shape[:1] if case.shape[0] % ranks else ()
    before = argument.clone()

    def record(operator: Any, *_: Any) -> None:
        name = str(operator).removeprefix("c10d.")
        if name != str(operator) and not name.startswith(("send", "recv")):
            collectives.append(name.partition("_")[0].partition(".")[0])

    with _wire.log_wire() as log, _wire.Listener(record):
        result = function(argument, peers, *rows)
    return _Result(result, argument.equal(before), log, collectives)


def _part(case: _Tensor, index: int, ranks: int) -> "torch.Tensor":
    return case.total(ranks).tensor_split(ranks)[index]


def _expect_part(seen: _Result, at: Place, gathers: bool = False) -> Iterator[Row]:
    rank, ranks, case, _ = at
    parts = others_parts([_part(case, n, ranks) for n in range(ranks)], rank)
    own_part = case.tensor(rank).tensor_split(ranks)[rank]
    argument, what = ("shard", "the whole") if gathers else ("whole", "the part")
    expected = case.total(ranks) if gathers else _part(case, rank, ranks)
    parts["what this rank itself had, to which nothing was added"] = own_part
    mean = {1 / ranks: "the mean over ranks, where the sum is wanted"}
    yield Must(what, seen.result, expected, {} if gathers else parts, mean)
    kind = getattr(seen.result, "dtype", None)
    yield Never(kind != expected.dtype, f"{what} is {kind}, expected that of `{argument}`")
    yield Never(not seen.kept, f"`{argument}` has changed: add to a copy of it")
    called = "".join(seen.collectives[:1])
    yield Never(called, f"calls torch's {called}: write it from messages")
    size = -(-case.shape[0] // ranks) * case.tensor(0)[:1].nbytes
    half, ring = COPY if gathers else ADD, ring_steps(ranks, size) if ranks > 1 else ()
    trace = Trace(one for one in ring if one.what == half)
    why = "a ring sends one part, to the next rank, in each of n-1 steps"
    yield Sends(seen.log, trace, why, at_most=True, who=rank)


def _check_ring(results: list[_Result], case: _Tensor) -> Iterator[Row]:
    ranks, line = len(results), next(one for one in case.lines() if len(one) == len(results))
    sent = [(n, c.to) for n, seen in enumerate(results) for c in seen.log.calls if c.to in line]
    hops = {(line.index(to) - n) % ranks for n, to in sent}
    yield Never(
        not hops <= {1} and not hops <= {ranks - 1},
        f"messages go {sorted(hops)} ranks further: in a ring each rank sends to its neighbour "
        "only",
    )


def _ring(title: str, *cases: _Tensor, gathers: bool = False) -> Any:
    name = "ring_all_gather" if gathers else "ring_reduce_scatter"
    run, rows = partial(_run_ring, gathers=gathers), partial(_expect_part, gathers=gathers)
    return compare(title, (name,), run, rows, cases, last=_check_ring)


def _even(ranks: int) -> tuple[_Tensor, _Tensor]:
    return _Tensor((2 * ranks, 2), ranks=ranks), _Tensor((ranks,), "bfloat16", ranks=ranks)


_UNEVEN = (
    _Tensor((7, 2), ranks=4),
    _Tensor((2, 2), ranks=4),
    _Tensor((5, 3, 1), "int64", ranks=4),
    _Tensor((4, 2), ranks=4, in_group=True),
)


def _raced_ring(parts: SimpleNamespace) -> Callable[[], object]:
    peers, whole = _peers.Peers(), torch.ones(4_000_000)
    scatter, gather = parts.ring_reduce_scatter, parts.ring_all_gather
    return lambda: gather(scatter(whole, peers), peers, len(whole))


def _scratch_ring() -> Callable[[], object]:
    whole = torch.ones(4_000_000)
    return lambda: _scratch_wire.all_gather(_scratch_wire.reduce_scatter(whole))


RING = build(
    "ring",
    steps=(
        _ring("the reduce-scatter", *_even(2), *_even(3)),
        _ring("parts of unequal length", *_UNEVEN),
        _ring("the all-gather", *_even(3), *_UNEVEN, gathers=True),
    ),
    race=Race("reduce-scatter and all-gather of 16 MB", _raced_ring, _scratch_ring),
)


# --- 6.12: tree ---------------------------------------------------------------------------------

# One rank's round: the ranks it sends to and receives from, or None.
_Round = tuple[int | None, int | None]


@dataclass
class _TreeResult:
    """A rank's result, and the rounds and messages that produced it."""

    total: Any = None
    kept: bool = True  # the argument is unchanged
    stays: bool = True  # the result is unchanged by another call
    rounds: list[_Round] = field(default_factory=list)
    sent: tuple[int, int] = (0, 0)  # calls and bytes


def _recording_peers(group: Any, rounds: list[_Round]) -> Any:
    """A `Peers` of the group that appends this rank's sends and receives to `rounds`."""

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


def _run_tree(parts: SimpleNamespace, case: _Tensor, group: Any) -> _TreeResult:
    seen = _TreeResult()
    peers = _recording_peers(group, seen.rounds)
    tensor = case.tensor(peers.rank)
    with _wire.log_wire() as log:
        seen.total = parts.tree_all_reduce(tensor, peers)
    seen.sent = log.sent().get("send-recv", (0, 0))
    seen.kept = tensor.equal(case.tensor(peers.rank))
    if case.dtype == "float32" and isinstance(seen.total, torch.Tensor):
        before = seen.total.clone()
        parts.tree_all_reduce(tensor + 1, _recording_peers(group, []))
        seen.total, seen.stays = before, seen.total.equal(before)
    return seen


def _expect_sum(seen: _TreeResult, at: Place) -> Iterator[Row]:
    tensors = torch.stack([at.case.tensor(rank) for rank in range(at.ranks)])
    expected = tensors.sum(0)
    others = {"what this rank itself had": tensors[at.rank]} | {
        f"the sum of ranks {at.rank} to {last}": tensors[at.rank : last + 1].sum(0)
        for last in range(at.rank + 1, at.ranks)
    }
    mean = {1 / at.ranks: "the mean over ranks, where the sum is wanted"}
    yield Must("the result", seen.total, expected, others, mean)
    kind = seen.total.dtype
    yield Never(kind != expected.dtype, f"the result is {kind}, expected that of `tensor`")
    yield Never(not seen.kept, "`tensor` has changed: add to a copy")
    yield Never(
        not seen.stays, "what one call has returned is changed by the next: return a new tensor"
    )


def _check_tree(results: list[_TreeResult], case: _Tensor) -> Iterator[Row]:
    """Check messages and steps against those predicted for a tree."""
    ranks, rounds = len(results), [seen.rounds for seen in results]
    if ranks == 1:
        return
    trace = tree_steps(ranks)
    sent, right = sum(to is not None for own in rounds for to, _ in own), trace.sent()[SEND].calls
    more = "more" if sent > right else "fewer"
    yield Never(
        sent != right,
        f"{ranks} ranks send {sent} messages, {more} than a tree: each child sends once up, and "
        "each parent once down to each child",
    )
    sends = [to is not None for to, _ in rounds[0]]
    yield Never(sends != sorted(sends), "rank 0 sends before it has the whole sum: it is the root")
    steps, right = _steps(rounds), int(trace.times[-1])
    yield Never(
        steps > right,
        f"{steps} messages follow each other, where a tree has {right}: let pairs of ranks work at "
        "the same time",
    )
    whole = case.tensor(0).nbytes
    large = any(size > calls * whole for calls, size in (seen.sent for seen in results))
    yield Never(large, "a message is more than the whole tensor")


def _steps(rounds: Sequence[list[_Round]]) -> int:
    """Number of sequential rounds, if sender and receiver of a message share a round."""
    finished, index = [0] * len(rounds), [0] * len(rounds)
    progress = True
    while progress:
        progress = False
        for rank, own in enumerate(rounds):
            to, source = own[index[rank]] if index[rank] < len(own) else (None, None)
            peer = source if to is None else to
            if peer is None or index[peer] == len(rounds[peer]):
                continue
            if rank in rounds[peer][index[peer]]:
                finished[rank] = finished[peer] = 1 + max(finished[rank], finished[peer])
                index[rank], index[peer] = index[rank] + 1, index[peer] + 1
                progress = True
    return max(finished)


def _cases(*ranks: int) -> tuple[_Tensor, ...]:
    return tuple(
        _Tensor(shape, dtype, ranks=n)
        for n in ranks
        for shape, dtype in (((7,), "float32"), ((2, 3), "bfloat16"))
    )


_ANY = *_cases(3, 5), _Tensor((), "int64", ranks=5, in_group=True)
_NEEDS = ("tree_all_reduce",)

TREE = build(
    "tree",
    steps=(
        compare("2 and 4 ranks", _NEEDS, _run_tree, _expect_sum, _cases(2, 4), last=_check_tree),
        compare("3 and 5 ranks", _NEEDS, _run_tree, _expect_sum, _ANY, last=_check_tree),
    ),
    race=Race(
        "all-reduce of 16 MB",
        lambda parts: partial(parts.tree_all_reduce, torch.ones(4_000_000), _peers.Peers()),
        lambda: partial(_scratch_wire.all_reduce, torch.ones(4_000_000)),
    ),
)
