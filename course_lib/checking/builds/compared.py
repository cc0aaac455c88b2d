"""Compares tensors, and says what kind of wrong a difference is: a factor, a place, a shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described

# float32, summed in another order.
TOLERANCE = 1e-5


def expect_tensor(
    found: Any,
    expected: Any,
    what: str,
    *,
    factors: Mapping[float, str] | None = None,
    others: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Raise Wrong unless `found` is `expected`, a tensor, to `tolerance` × its largest number.

    `factors`: what a constant factor would mean, {2.0: "the sum instead of the mean"}. `others`:
    tensors that it might be by mistake, {"the part of rank 2": …}.
    """
    import torch

    if found is None:
        raise Unanswered(f"{what} is None")
    if not isinstance(found, torch.Tensor):
        raise Wrong(f"{what} wants a tensor, got {described(found)}")
    if found.shape != expected.shape:
        raise Wrong(f"{what} has shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    scale = max(expected.abs().max().item() if expected.numel() else 0.0, 1e-30)
    if _near(found, expected, scale * tolerance):
        return
    raise Wrong(f"{what} {_kind(found, expected, scale * tolerance, factors or {}, others or {})}")


def expect_none_of(found: Any, mistakes: Mapping[str, Any], what: str) -> None:
    """Raise Wrong if `found` is one of these tensors, by name: "{what} is {name}".

    For mistakes that are not a constant factor: {"the mean of the means": …}.
    """
    import torch

    if not isinstance(found, torch.Tensor):
        return
    for name, mistake in mistakes.items():
        if found.shape == mistake.shape:
            limit = TOLERANCE * mistake.detach().abs().max().item()
            if _near(found.detach().double(), mistake.detach().double(), limit):
                raise Wrong(f"{what} is {name}")


def _kind(
    found: Any, expected: Any, limit: float, factors: Mapping[float, str], others: Mapping[str, Any]
) -> str:
    """What kind of wrong it is, in words."""
    if not bool(found.isfinite().all()):
        return "has numbers that are not finite"
    for name, other in others.items():
        if other.shape == found.shape and _near(found, other.detach().double(), limit):
            return f"is {name}, not what is expected"
    for factor, meaning in factors.items():
        if _near(found, factor * expected, max(1.0, abs(factor)) * limit):
            return f"is {_times(factor)} what is expected: {meaning}"
    if not bool(found.any()):
        return "is all zeros, expected something else"
    if not bool(expected.any()):
        return "is not 0, and 0 is expected"
    factor = float((found * expected).sum() / expected.square().sum())
    if found.numel() > 1 and _near(found, factor * expected, max(1.0, abs(factor)) * limit):
        return f"is {factor:.4g} times what is expected, in all its numbers"
    wrong = ((found - expected).abs() > limit).flatten()
    worst = (found - expected).abs().max().item() / expected.abs().max().item()
    first = int(wrong.nonzero()[0])
    return (
        f"differs in {int(wrong.sum())} of {wrong.numel()} numbers from what is expected, first in "
        f"number {first}, by up to {worst:.1g} of the largest"
    )


def _times(factor: float) -> str:
    whole = factor > 0 and abs(1 / factor - round(1 / factor)) < 1e-9
    return f"1/{1 / factor:g} of" if factor < 1 and whole else f"{factor:g} times"


def _near(one: Any, other: Any, limit: float) -> bool:
    return not one.numel() or bool((one - other).abs().max() <= limit)


Sent = Mapping[str, tuple[int, int]]  # calls and bytes by operation


def expect_sent(outcomes: Sequence[Any], expected: Sent | Sequence[Sent], why: str) -> None:
    """Raise Wrong unless each rank sent exactly these calls and bytes, by operation.

    `expected` is of every rank, or a list by rank. A first sentence names operation and rank; then
    whether it is too much or too little.
    """
    for rank, outcome in enumerate(outcomes):
        sent, right = outcome.wire.sent(), expected
        if not isinstance(right, Mapping):
            right = right[rank]
        for name in sorted({*sent, *right}):
            calls, size = sent.get(name, (0, 0))
            right_calls, right_size = right.get(name, (0, 0))
            if calls != right_calls:
                more = _more(calls, right_calls)
                raise Wrong(f"rank {rank} makes {more} {name} calls than expected: {why}")
            if size != right_size:
                more = _more(size, right_size)
                raise Wrong(f"rank {rank} sends {more} bytes by {name} than expected: {why}")


def _more(found: int, expected: int) -> str:
    return "more" if found > expected else "fewer"
