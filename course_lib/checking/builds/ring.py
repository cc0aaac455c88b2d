"""Build 6.11: reduce-scatter and all-gather around a ring of ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_tensor
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.collectives import steps

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Case:
    """Numbers of one shape and dtype on all ranks, or on a group of all but rank 1."""

    rows: int
    row: tuple[int, ...] = (2,)
    dtype: str = "float32"
    in_group: bool = False

    def words(self) -> str:
        """For sentences."""
        kind = "" if self.dtype == "float32" else f" in {self.dtype}"
        group = ", in a group without rank 1" if self.in_group else ""
        return f"{self.rows} rows{kind}{group}"

    def whole(self, rank: int) -> "Tensor":
        """What a rank gives: (rows, …), different numbers on each rank."""
        import torch

        numbers = torch.arange(1.0, 1 + self.rows * math.prod(self.row)).view(self.rows, *self.row)
        if self.dtype == "float32":
            return numbers * float(10**rank)
        return ((numbers % 7 + 1) * (rank + 1)).to(getattr(torch, self.dtype))  # bf16 has all sums

    def total(self, ranks: int) -> "Tensor":
        """The sum over ranks."""
        import torch

        return torch.stack([self.whole(rank) for rank in range(ranks)]).sum(0)


@dataclass(frozen=True)
class _Seen:
    """What a rank found: the result, whether the argument is unchanged, and its messages."""

    result: Any
    kept: bool
    to: list[int]  # how many ranks further each message goes
    size_bytes: int
    collectives: list[str]  # torch's own that were called


def _on_rank(function: Any, gathers: bool, cases: Sequence[_Case]) -> list[_Seen]:
    """On a rank: the function's work in each case."""
    from course_lib.checking.builds.on_rank.traffic import in_case, own_group
    from course_lib.measure.operators import Listener
    from course_lib.scratch.collectives.peers import Peers

    found = []
    for case in cases:
        peers = Peers(own_group() if case.in_group else None)
        given = case.whole(peers.rank)
        rows: tuple[int, ...] = ()
        if gathers:
            given = case.total(peers.ranks).tensor_split(peers.ranks)[peers.rank].clone()
            rows = (case.rows,) if case.rows % peers.ranks else ()
        before, sent = given.clone(), list[tuple[int, int]]()
        collectives: list[str] = []

        def heard(
            operator: Any,
            args: Any,
            *_: Any,
            sent: Any = sent,
            peers: Any = peers,
            collectives: Any = collectives,
        ) -> None:
            name = str(operator).removeprefix("c10d.")
            if name != str(operator) and not name.startswith(("send", "recv")):
                collectives.append(name.partition("_")[0].partition(".")[0])
            if str(operator).startswith("c10d.send"):
                size = sum(tensor.nbytes for tensor in args[0])
                sent.append(((args[2] - peers.rank) % peers.ranks, size))

        with Listener(heard), in_case(case.words()):
            result = function(given, peers, *rows)
        to, sizes = [one for one, _ in sent], [size for _, size in sent]
        found.append(_Seen(result, given.equal(before), to, sum(sizes), collectives))
    return found


def _check(function: Any, gathers: bool, ranks: int, *cases: _Case) -> None:
    outcomes = each_rank(on_ranks(_on_rank, function, gathers, cases, ranks=ranks))
    for place, case in enumerate(cases):
        found = [(name, value[place]) for name, value in outcomes]
        if case.in_group:
            _expect(found[1:2], case, gathers)
            found = [found[0], *found[2:]]
        _expect(found, case, gathers)


def _expect(found: list[tuple[str, _Seen]], case: _Case, gathers: bool) -> None:
    """Results of one case on all of its ranks, and the messages of a ring."""
    ranks, given = len(found), "shard" if gathers else "whole"
    total = case.total(ranks)
    parts = total.tensor_split(ranks)
    for rank, (name, seen) in enumerate(found):
        others = {f"the part of rank {n}": each for n, each in enumerate(parts) if n != rank}
        own = case.whole(rank).tensor_split(ranks)[rank]
        others["what this rank itself had, to which nothing was added"] = own
        what = f"{name}, {case.words()}: the {'whole' if gathers else 'part'}"
        expect_tensor(
            seen.result,
            total if gathers else parts[rank],
            what,
            factors={1 / ranks: "the mean over ranks, where the sum is wanted"},
            others={} if gathers else others,
        )
        if seen.result.dtype != total.dtype:
            raise Wrong(f"{what} is {seen.result.dtype}, expected that of `{given}`")
        if not seen.kept:
            raise Wrong(f"{name}: `{given}` has changed: add to a copy of it")
        if seen.collectives:
            raise Wrong(f"{name}: calls torch's {seen.collectives[0]}: write it from messages")
    ways = [set(seen.to) for _, seen in found]
    if not set.union(*ways) <= {1} and not set.union(*ways) <= {ranks - 1}:
        raise Wrong(
            f"on {ranks} ranks, {case.words()}: messages go {sorted(set.union(*ways))} ranks "
            "further: in a ring each rank sends to its neighbour only"
        )
    most = case.rows // ranks + bool(case.rows % ranks)
    for name, seen in found:
        right = steps("reduce-scatter", ranks) if ranks > 1 else 0
        if len(seen.to) > right or seen.size_bytes > right * most * total[:1].nbytes:
            what = "messages" if len(seen.to) > right else "bytes"
            raise Wrong(
                f"{name}, {case.words()}: sends more {what} than a ring, which sends one part, "
                "to the next rank, in each of n-1 steps"
            )


def _even_scatter(parts: SimpleNamespace) -> None:
    for ranks in (2, 3):
        cases = _Case(2 * ranks), _Case(ranks, (), "bfloat16")
        _check(parts.ring_reduce_scatter, False, ranks, *cases)


def _uneven_scatter(parts: SimpleNamespace) -> None:
    cases = _Case(7), _Case(2), _Case(5, (3, 1), "int64"), _Case(4, in_group=True)
    _check(parts.ring_reduce_scatter, False, 4, *cases)


def _gathered(parts: SimpleNamespace) -> None:
    _check(parts.ring_all_gather, True, 3, _Case(6), _Case(3, (), "bfloat16"))
    cases = _Case(7), _Case(2), _Case(5, (3, 1), "int64"), _Case(4, in_group=True)
    _check(parts.ring_all_gather, True, 4, *cases)


def _prepared(parts: SimpleNamespace) -> Any:
    """Four million numbers, reduced and gathered again."""
    import torch

    from course_lib.scratch.collectives.peers import Peers

    peers, whole = Peers(), torch.ones(4_000_000)

    def once() -> None:
        part = parts.ring_reduce_scatter(whole, peers)
        parts.ring_all_gather(part, peers, len(whole))

    return once


def _by_torch() -> Any:
    import torch

    from course_lib.scratch import wire

    whole = torch.ones(4_000_000)
    return lambda: wire.all_gather(wire.reduce_scatter(whole))


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
        Step("the reduce-scatter", ("ring_reduce_scatter",), _even_scatter),
        Step("parts of unequal length", ("ring_reduce_scatter",), _uneven_scatter),
        Step("the all-gather", ("ring_all_gather",), _gathered),
    ),
    race=Race("reduce-scatter and all-gather of 16 MB", _prepared, _by_torch),
)
