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
    same_dtype: bool = False,
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
    if same_dtype and found.dtype != expected.dtype:
        raise Wrong(f"{what} is of {found.dtype}, and was given {expected.dtype}")
    found, expected = found.detach().double(), expected.detach().double()
    scale = max(expected.abs().max().item() if expected.numel() else 0.0, 1e-30)
    if _near(found, expected, scale * tolerance):
        return
    raise Wrong(f"{what} {_kind(found, expected, scale * tolerance, factors or {}, others or {})}")


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


def others_parts(parts: Sequence[Any], place: int) -> dict[str, Any]:
    """What a rank might have by mistake, where it should have the part of its `place`."""
    return {f"the part of rank {n}": part for n, part in enumerate(parts) if n != place}


Sent = Mapping[str, tuple[int, int]]  # calls and bytes by operation


def expect_calls(log: Any, right: Sent, name: str, why: str, *, at_most: bool = False) -> None:
    """Raise Wrong unless the rank `name` sent exactly these calls and bytes, by operation.

    The sentence names operation and rank, and whether it is too much or too little. With `at_most`
    nothing is too little.
    """
    sent = log.sent()
    for operation in sorted({*sent, *right}):
        found, expected = sent.get(operation, (0, 0)), right.get(operation, (0, 0))
        for count, wanted, verb, what in zip(
            found, expected, ("makes", "sends"), ("{} calls", "bytes by {}"), strict=True
        ):
            if count > wanted or (count < wanted and not at_most):
                more = _more(count, wanted)
                raise Wrong(f"{name} {verb} {more} {what.format(operation)} than expected: {why}")


def _more(found: int, expected: int) -> str:
    return "more" if found > expected else "fewer"


def expect_among(log: Any, ranks: int, what: str) -> None:
    """Raise Wrong if a call is not among the `ranks` ranks of the group that was given."""
    for call in log.calls:
        if call.part != ranks:
            raise Wrong(
                f"{what}: its {call.what} is among {call.part} ranks, and the group that it "
                f"gets has {ranks}"
            )
