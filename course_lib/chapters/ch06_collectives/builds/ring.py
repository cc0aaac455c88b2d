"""Build 6.11: reduce-scatter and all-gather around a ring of ranks."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from course_lib.checking.build import build
from course_lib.checking.builds.compare import (
    Case,
    Must,
    Never,
    Place,
    Row,
    Sends,
    compare,
    later,
    torch,
)
from course_lib.checking.builds.compared import others_parts
from course_lib.checking.races import Race
from course_lib.theory.stories.messages import ring_steps
from course_lib.trace import ADD, COPY, Trace

_operators, _wire = later("course_lib.measure.operators"), later("course_lib.measure.wire")
_peers = later("course_lib.scratch.collectives")


@dataclass(frozen=True)
class _Numbers(Case):
    """Numbers of one shape and dtype, different ones on each rank."""

    rows: int
    row: tuple[int, ...] = (2,)
    dtype: str = "float32"

    def words(self, _: Sequence[int]) -> str:
        kind = "" if self.dtype == "float32" else f" in {self.dtype}"
        group = ", in a group without rank 1" if self.in_group else ""
        return f"{self.rows} rows{kind}{group}"

    def whole(self, rank: int) -> "torch.Tensor":
        """What a rank gives: (rows, …)."""
        numbers = torch.arange(1.0, 1 + self.rows * math.prod(self.row)).view(self.rows, *self.row)
        if self.dtype == "float32":
            return numbers * float(10**rank)
        return ((numbers % 7 + 1) * (rank + 1)).to(getattr(torch, self.dtype))  # bf16 has all sums

    def total(self, ranks: int) -> "torch.Tensor":
        """The sum over ranks."""
        return torch.stack([self.whole(rank) for rank in range(ranks)]).sum(0)


class _Seen(NamedTuple):
    """What a rank found: the result, whether the argument is unchanged, and what it has called."""

    result: Any
    kept: bool
    log: Any
    collectives: list[str]  # torch's own


def _run(parts: SimpleNamespace, case: _Numbers, group: Any, gathers: bool = False) -> _Seen:
    peers, collectives = _peers.Peers(group), list[str]()
    rank, ranks, function = peers.rank, peers.ranks, parts.ring_reduce_scatter
    given, rows = case.whole(rank), tuple[int, ...]()
    if gathers:
        function, given = parts.ring_all_gather, _part(case, rank, ranks).clone()
        rows = (case.rows,) if case.rows % ranks else ()
    before = given.clone()

    def heard(operator: Any, *_: Any) -> None:
        name = str(operator).removeprefix("c10d.")
        if name != str(operator) and not name.startswith(("send", "recv")):
            collectives.append(name.partition("_")[0].partition(".")[0])

    with _wire.log_wire() as log, _operators.Listener(heard):
        result = function(given, peers, *rows)
    return _Seen(result, given.equal(before), log, collectives)


def _part(case: _Numbers, place: int, ranks: int) -> "torch.Tensor":
    return case.total(ranks).tensor_split(ranks)[place]


def _rows(seen: _Seen, at: Place, gathers: bool = False) -> Iterator[Row]:
    place, ranks, case, _ = at
    parts = others_parts([_part(case, n, ranks) for n in range(ranks)], place)
    own = case.whole(place).tensor_split(ranks)[place]
    given, what = ("shard", "the whole") if gathers else ("whole", "the part")
    right = case.total(ranks) if gathers else _part(case, place, ranks)
    parts["what this rank itself had, to which nothing was added"] = own
    mean = {1 / ranks: "the mean over ranks, where the sum is wanted"}
    yield Must(what, seen.result, right, {} if gathers else parts, mean)
    kind = getattr(seen.result, "dtype", None)
    yield Never(kind != right.dtype, f"{what} is {kind}, expected that of `{given}`")
    yield Never(not seen.kept, f"`{given}` has changed: add to a copy of it")
    called = "".join(seen.collectives[:1])
    yield Never(called, f"calls torch's {called}: write it from messages")
    size = -(-case.rows // ranks) * case.whole(0)[:1].nbytes
    half, ring = COPY if gathers else ADD, ring_steps(ranks, size) if ranks > 1 else ()
    trace = Trace(one for one in ring if one.what == half)
    why = "a ring sends one part, to the next rank, in each of n-1 steps"
    yield Sends(seen.log, trace, why, at_most=True, who=place)


def _a_ring(found: list[_Seen], case: _Numbers) -> Iterator[Row]:
    ranks, line = len(found), next(line for line in case.lines() if len(line) == len(found))
    sent = [(n, one.to) for n, seen in enumerate(found) for one in seen.log.calls if one.to in line]
    ways = {(line.index(to) - n) % ranks for n, to in sent}
    yield Never(
        not ways <= {1} and not ways <= {ranks - 1},
        f"messages go {sorted(ways)} ranks further: in a ring each rank sends to its neighbour "
        "only",
    )


def _ring(title: str, *cases: _Numbers, gathers: bool = False) -> Any:
    name = "ring_all_gather" if gathers else "ring_reduce_scatter"
    run, rows = partial(_run, gathers=gathers), partial(_rows, gathers=gathers)
    return compare(title, (name,), run, rows, cases, last=_a_ring)


def _even(ranks: int) -> tuple[_Numbers, _Numbers]:
    return _Numbers(2 * ranks, ranks=ranks), _Numbers(ranks, (), "bfloat16", ranks=ranks)


_UNEVEN = (
    _Numbers(7, ranks=4),
    _Numbers(2, ranks=4),
    _Numbers(5, (3, 1), "int64", ranks=4),
    _Numbers(4, ranks=4, in_group=True),
)

_wire = later("course_lib.scratch.wire")


def _raced_ring(parts: SimpleNamespace) -> Callable[[], object]:
    peers, whole = _peers.Peers(), torch.ones(4_000_000)
    scatter, gather = parts.ring_reduce_scatter, parts.ring_all_gather
    return lambda: gather(scatter(whole, peers), peers, len(whole))


def _of_16_mb(work: Callable[[Any], object]) -> Callable[[], object]:
    whole = torch.ones(4_000_000)
    return lambda: work(whole)


RING = build(
    "ring",
    title="a ring of messages",
    hints=(
        "Part i must end on rank i, so it starts its way on rank i+1. Which part does rank r send "
        "in the first step?",
        "reduce-scatter, step k = 1 … n-1: rank r sends part r-k and receives part r-k-1 (mod n).",
        "all-gather, step k = 0 … n-2: rank r sends part r-k, which it has, and receives r-k-1.",
        "`tensor_split` gives views: what is received into a view lands in the whole tensor.",
    ),
    steps=(
        _ring("the reduce-scatter", *_even(2), *_even(3)),
        _ring("parts of unequal length", *_UNEVEN),
        _ring("the all-gather", *_even(3), *_UNEVEN, gathers=True),
    ),
    race=Race(
        "reduce-scatter and all-gather of 16 MB",
        _raced_ring,
        lambda: _of_16_mb(lambda whole: _wire.all_gather(_wire.reduce_scatter(whole))),
    ),
)
