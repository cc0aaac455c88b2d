"""What a difference between the ranks' pieces and the whole looks like: known mistakes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from course_lib.comparing.readings import Reading, cuts, joined, relative

_MISSING = "an all-reduce is missing"


def explained(
    pieces: list[Tensor], expected: Tensor, limit: float, bias: Tensor | None = None
) -> str:
    """What a difference looks like, in words; "" if like no known mistake.

    `limit` is the largest difference that still counts as equal, relative to the largest number;
    `bias`: what is added to each row last, once.
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
        yield (
            ranks,
            f"it is {ranks} times what is expected: summed over {ranks} ranks once too often",
        )
        yield (
            1 / ranks,
            f"it is 1/{ranks} of what is expected: divided by {ranks} ranks once too often",
        )
        yield ranks**0.5, f"it is √{ranks} times what is expected"
        yield ranks**-0.5, f"it is 1/√{ranks} of what is expected"
    yield -1.0, "it has the wrong sign"
    for factor in (2.0, 0.5):
        yield factor, f"it is {factor:g} times what is expected"


def wrong_ranks(pieces: list[Tensor], expected: Tensor, limit: float) -> list[int]:
    """The ranks whose piece is not what is expected; none where the pieces cannot be told apart."""
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
    """Whether every row is off by the same vector."""
    if found.ndim < 2 or len(found.flatten(0, -2)) < 2:
        return False
    rows = (found.double() - expected.double()).flatten(0, -2)
    spread, shift = (rows - rows.mean(0)).abs().max().item(), rows.mean(0).abs().max().item()
    return spread <= limit * expected.double().abs().max().item() < shift
