"""Ways to combine the ranks' pieces of a tensor into the whole tensor."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

HUGE = 1e18
PARTS = (1, 2, 3)  # a fused matrix is sharded within each of its parts: gate and up; q, k and v


class Reading(NamedTuple):
    """One way to combine the ranks' pieces: its description and the whole tensor."""

    words: str
    whole: Tensor


def right_readings(
    kind: str, pieces: list[Tensor], expected: Tensor, own_rows: bool
) -> Iterator[Reading]:
    """Yield every valid way to combine `pieces` into a tensor of the shape of `expected`.

    `own_rows`: each rank has its own samples, and its loss is the mean over them. On a 2D mesh,
    neighbouring ranks share the matrices, and each group of neighbours has its own rows.
    """
    yield from _in_one_way(kind, pieces, expected, own_rows)
    for inner in range(2, len(pieces) if own_rows else 0):
        if len(pieces) % inner == 0:
            yield from _in_two_ways(kind, pieces, expected, inner)


def _in_two_ways(
    kind: str, pieces: list[Tensor], expected: Tensor, inner: int
) -> Iterator[Reading]:
    """Combine each `inner` neighbours into the rows of their group, then all groups."""
    groups = [pieces[start : start + inner] for start in range(0, len(pieces), inner)]
    count = len(groups)
    ways = [(1, [expected] * count)]
    if expected.ndim and expected.shape[0] % count == 0:
        # Before the gradient average, each group has `count` times the gradient.
        scales = (1, count) if kind == "gradient of the output" else (1,)
        ways += [(scale, list((scale * expected).chunk(count))) for scale in scales]
    for scale, parts in ways:
        best = [_best(kind, *pair) for pair in zip(groups, parts, strict=True)]
        combined = [one for one in best if one]
        if len(combined) < count:
            continue
        words = f"{combined[0].words}, on each {inner} ranks"
        if parts[0] is expected:
            whole = max((one.whole for one in combined), key=lambda one: relative(one, expected))
        else:
            whole = torch.cat([one.whole for one in combined]) / scale
        yield Reading(words, whole)


def _best(kind: str, pieces: list[Tensor], expected: Tensor) -> Reading | None:
    readings = _in_one_way(kind, pieces, expected, own_rows=False)
    return min(readings, key=lambda one: relative(one.whole, expected), default=None)


def _in_one_way(
    kind: str, pieces: list[Tensor], expected: Tensor, own_rows: bool
) -> Iterator[Reading]:
    ranks = len(pieces)
    if all(piece.shape == expected.shape for piece in pieces):
        yield _same(pieces, expected)
        if own_rows and kind in ("loss", "gradient of the output"):
            yield Reading("the mean over the ranks", _mean(pieces))
    for dimension, parts in cuts(pieces, expected):
        whole = joined(pieces, dimension, parts)
        suffix = "" if parts == 1 else f", in {parts} parts"
        cut = whole.narrow(dimension, 0, expected.shape[dimension])
        words = f"cut along dimension {dimension}{suffix}"
        yield Reading(words, cut)
        if own_rows and kind == "gradient of the output":
            yield Reading(words, cut / ranks)  # the gradient average still has to divide by ranks


def joined(pieces: list[Tensor], dimension: int, parts: int = 1) -> Tensor:
    """Concatenate the pieces along `dimension`; for a fused matrix, part by part."""
    columns = zip(*(piece.chunk(parts, dimension) for piece in pieces), strict=True)
    return torch.cat([piece for part in columns for piece in part], dimension)


def _same(pieces: list[Tensor], expected: Tensor) -> Reading:
    """A replicated tensor, represented by the rank furthest from `expected`."""
    words = "the same on every rank" if len(pieces) > 1 else "whole"
    return Reading(words, max(pieces, key=lambda piece: relative(piece, expected)))


def _mean(pieces: list[Tensor]) -> Tensor:
    return torch.stack([piece.double() for piece in pieces]).mean(0)


def cuts(pieces: list[Tensor], expected: Tensor) -> Iterator[tuple[int, int]]:
    """Yield (dimension, parts) for which the pieces, padded by less than a row each, fit."""
    ranks = len(pieces)
    if ranks == 1 or any(piece.ndim != expected.ndim for piece in pieces):
        return
    for dimension, size in enumerate(expected.shape):
        total = sum(piece.shape[dimension] for piece in pieces)
        others = all(
            a == b
            for piece in pieces
            for index, (a, b) in enumerate(zip(piece.shape, expected.shape, strict=True))
            if index != dimension
        )
        if others and size <= total < size + ranks:
            for parts in PARTS:
                if all(piece.shape[dimension] % parts == 0 for piece in pieces):
                    yield dimension, parts


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest expected value; HUGE if that is not a number."""
    if not expected.numel():
        return 0.0
    gap = (found.double() - expected.double()).abs().max().item()
    scale = expected.double().abs().max().item()
    if gap == 0:
        return 0.0
    return min(gap / scale, HUGE) if scale and gap == gap else HUGE


_MISSING = "an all-reduce is missing"


def explained(
    pieces: list[Tensor], expected: Tensor, limit: float, bias: Tensor | None = None
) -> str:
    """The known mistake that explains the difference, in words; "" if none does.

    `limit` is the largest difference that still counts as equal, relative to the largest value;
    `bias` is the vector that the module adds to each row.
    """
    for words, whole in _mistakes(pieces, expected):
        if relative(whole, expected) <= limit:
            return words
    ranks = len(pieces)
    if ranks == 1 or any(piece.shape != expected.shape for piece in pieces):
        return ""
    if bias is not None and bias.shape == expected.shape[-1:]:
        once = expected.double() + (ranks - 1) * bias.double()
        if all(relative(piece, once) <= limit for piece in pieces):
            return "every row is off by the same vector: a bias is added once for each rank"
    if _constant_row(torch.stack(pieces).double().sum(0), expected, limit):
        return f"the sum over the ranks is right, but for a bias: {_MISSING}"
    return ""


def _mistakes(pieces: list[Tensor], expected: Tensor) -> Iterator[Reading]:
    ranks = len(pieces)
    same = all(piece.shape == expected.shape for piece in pieces)
    if same and ranks > 1:
        total = torch.stack([piece.double() for piece in pieces]).sum(0)
        yield Reading(f"the sum over the ranks is right: {_MISSING}", total)
        yield Reading(f"the mean over the ranks is right: {_MISSING}", total / ranks)
    for factor, words in _factors(ranks):
        for piece in pieces[:1] if same else []:
            yield Reading(words, piece.double() / factor)
        for dimension, parts in cuts(pieces, expected) if not same else []:
            yield Reading(words, joined(pieces, dimension, parts).double() / factor)


def _factors(ranks: int) -> Iterator[tuple[float, str]]:
    if ranks > 1:
        expected = "what is expected"
        once = f"{ranks} ranks once too often"
        yield ranks, f"it is {ranks} times {expected}: summed over {once}"
        yield 1 / ranks, f"it is 1/{ranks} of {expected}: divided by {once}"
        yield ranks**0.5, f"it is √{ranks} times {expected}"
        yield ranks**-0.5, f"it is 1/√{ranks} of {expected}"
    yield -1.0, "it has the wrong sign"
    for factor in (2.0, 0.5):
        yield factor, f"it is {factor:g} times what is expected"


def wrong_ranks(pieces: list[Tensor], expected: Tensor, limit: float) -> list[int]:
    """The ranks whose piece differs from `expected`; all if the pieces cannot be assigned."""
    if all(piece.shape == expected.shape for piece in pieces):
        return [r for r, piece in enumerate(pieces) if not relative(piece, expected) <= limit]
    best: list[int] = list(range(len(pieces)))
    for dimension, parts in cuts(pieces, expected):
        whole = joined(pieces, dimension, parts)
        if whole.shape != expected.shape:
            continue
        owner = joined(
            [torch.full_like(p, r, dtype=torch.int64) for r, p in enumerate(pieces)],
            dimension,
            parts,
        )
        scale = expected.double().abs().max().item()
        off = ~((whole.double() - expected.double()).abs() <= limit * scale)
        wrong = sorted(set(owner[off].tolist()))
        best = min(best, wrong, key=len)
    return best


def _constant_row(found: Tensor, expected: Tensor, limit: float) -> bool:
    """Whether every row differs from `expected` by the same vector."""
    if found.ndim < 2 or len(found.flatten(0, -2)) < 2:
        return False
    rows = (found.double() - expected.double()).flatten(0, -2)
    spread, shift = (rows - rows.mean(0)).abs().max().item(), rows.mean(0).abs().max().item()
    return spread <= limit * expected.double().abs().max().item() < shift
