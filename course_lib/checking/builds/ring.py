"""Build 6.11: reduce-scatter and all-gather around a ring of ranks."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib.checking.build import Step, build
from course_lib.checking.builds.compared import expect_sent, expect_tensor
from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.builds.ranks import each_rank, on_ranks
from course_lib.checking.exercises import Wrong
from course_lib.checking.races import Race
from course_lib.theory.network.collectives import sent_bytes, steps

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS = 2


def _whole(rows: int, rank: int) -> "Tensor":
    """What a rank gives: (rows, 2), different numbers on each rank."""
    import torch

    return torch.arange(1.0, 1 + _COLUMNS * rows).view(rows, _COLUMNS) * float(10**rank)


def _parts(rows: int, ranks: int) -> tuple["Tensor", ...]:
    """The right part of each rank: rows of the sum over ranks."""
    import torch

    total = torch.stack([_whole(rows, rank) for rank in range(ranks)]).sum(0)
    return tuple(total.tensor_split(ranks))


def _scatter(function: Any, sizes: tuple[int, ...]) -> list[tuple[Any, bool]]:
    """On a rank: for each number of rows the part, and whether the argument is unchanged."""
    from course_lib.scratch.collectives.peers import Peers

    peers, results = Peers(), []
    for rows in sizes:
        whole = _whole(rows, peers.rank)
        part = function(whole, peers)
        results.append((part, bool((whole == _whole(rows, peers.rank)).all())))
    return results


def _gather(function: Any, rows: int) -> Any:
    from course_lib.scratch.collectives.peers import Peers

    peers = Peers()
    return function(_parts(rows, peers.ranks)[peers.rank].clone(), peers, rows)


def _check_scatter(function: Any, ranks: int, *sizes: int) -> list[Outcome]:
    outcomes = on_ranks(_scatter, function, sizes, ranks=ranks)
    for place, rows in enumerate(sizes):
        _expect_parts([(name, value[place]) for name, value in each_rank(outcomes)], rows)
    return outcomes


def _expect_parts(found: list[tuple[str, tuple[Any, bool]]], rows: int) -> None:
    ranks = len(found)
    parts = _parts(rows, ranks)
    for rank, (name, (part, kept)) in enumerate(found):
        others = {f"the part of rank {n}": each for n, each in enumerate(parts) if n != rank}
        own = _whole(rows, rank).tensor_split(ranks)[rank]
        expect_tensor(
            part,
            parts[rank],
            f"{name}, {rows} rows: the part",
            factors={1 / ranks: "the mean over ranks, where the sum is wanted"},
            others=others | {"what this rank itself had, to which nothing was added": own},
        )
        if not kept:
            raise Wrong(f"{name}: `whole` has changed: add to a copy of it")


def _even_scatter(parts: SimpleNamespace) -> None:
    for ranks in (2, 3):
        outcomes = _check_scatter(parts.ring_reduce_scatter, ranks, 2 * ranks)
        _expect_ring(outcomes, "reduce-scatter", 2 * ranks)


def _uneven_scatter(parts: SimpleNamespace) -> None:
    _check_scatter(parts.ring_reduce_scatter, 4, 7, 2)


def _gathered(parts: SimpleNamespace) -> None:
    for rows, ranks in ((6, 3), (7, 4)):
        outcomes = on_ranks(_gather, parts.ring_all_gather, rows, ranks=ranks)
        for name, whole in each_rank(outcomes):
            expect_tensor(whole, _all(rows, ranks), f"{name}, {rows} rows: the whole")
        if rows % ranks == 0:
            _expect_ring(outcomes, "all-gather", rows)


def _all(rows: int, ranks: int) -> "Tensor":
    import torch

    return torch.cat(_parts(rows, ranks))


def _expect_ring(outcomes: list[Outcome], operation: str, rows: int) -> None:
    """Each rank sends n-1 messages of one part, as the theory has it."""
    ranks, size = len(outcomes), 4 * _COLUMNS * rows
    expected = {"send-recv": (steps(operation, ranks), round(sent_bytes(operation, size, ranks)))}
    expect_sent(outcomes, expected, "a ring sends one part, to the next rank, in each of n-1 steps")


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
