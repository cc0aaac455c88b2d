"""The rows of a build: what must come out of the learner's work, and the words for what does not.

`Must` (a tensor), `Never` (a condition in which the work is refused, and the words) and `Sends`
(the messages). Rows of all ranks are looked at side by side, so a refusal is that of the
first one that fails, on whichever rank.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from course_lib.checking.builds.lazily import torch
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.trace import Trace

# float32, summed in another order.
TOLERANCE = 1e-5
Sent: TypeAlias = Mapping[str, tuple[int, int]]  # calls and bytes by operation


class Must(NamedTuple):
    """`found` is the tensor `right`; `others` and `factors` are what it may be by mistake.

    `others`: {"the part of rank 2": a tensor}; `factors`: {2.0: "the sum instead of the mean"}.
    """

    what: str
    found: Any
    right: Any
    others: Mapping[str, Any] = {}
    factors: Mapping[float, str] = {}
    tolerance: float = TOLERANCE  # relative to the largest number of `right`
    same_dtype: bool = False

    def check(self, where: str) -> None:
        """Raise Wrong, in words that begin with `where`, unless it is so."""
        what, found, right = _sentence(where, self.what), self.found, self.right
        if found is None:
            raise Unanswered(f"{what} is None")
        if not isinstance(found, torch.Tensor):
            raise Wrong(f"{what} wants a tensor, got {described(found)}")
        if found.shape != right.shape:
            raise Wrong(f"{what} has shape {tuple(found.shape)}, expected {tuple(right.shape)}")
        if self.same_dtype and found.dtype != right.dtype:
            raise Wrong(f"{what} is of {found.dtype}, and was given {right.dtype}")
        found, right = found.detach().double(), right.detach().double()
        largest = max(right.abs().max().item() if right.numel() else 0.0, 1e-30)
        if not _near(found, right, largest * self.tolerance):
            kind = _kind(found, right, largest * self.tolerance, self.factors, self.others)
            raise Wrong(f"{what} {kind}")


class Never(NamedTuple):
    """`wrong` is false: else the work is refused in these words."""

    wrong: object
    words: str

    def check(self, where: str) -> None:
        """Raise Wrong, in words that begin with `where`, unless it is so."""
        if self.wrong:
            raise Wrong(_sentence(where, self.words))


class Sends(NamedTuple):
    """`log` has these calls and bytes by operation, or those of a Trace of which it is `who`.

    One rank by itself sends nothing, whatever is said here of a group.
    """

    log: Any
    right: Sent | Trace
    why: str
    at_most: bool = False
    among: int = 0  # ranks of the group in which each call is made; 0: any, of several ranks
    what: str = ""
    who: int = 0

    def check(self, where: str) -> None:
        """Raise Wrong, in words that begin with `where`, unless it is so."""
        where = _sentence(where, self.what) if self.what else where
        for call in self.log.calls if self.among else ():
            if call.part != self.among:
                raise Wrong(
                    f"{where}: its {call.what} is among {call.part} ranks, and the group that it "
                    f"gets has {self.among}"
                )
        right = self.right.sent(self.who) if isinstance(self.right, Trace) else self.right
        right = {} if self.among == 1 else right
        name = re.sub(r"^(rank \d+) of \d+$", r"\1", where) + "," * ("," in where)
        sent = self.log.sent()
        for operation in sorted({*sent, *right}):
            pairs = zip(sent.get(operation, (0, 0)), right.get(operation, (0, 0)), strict=True)
            of = ("makes", f"{operation} calls"), ("sends", f"bytes by {operation}")
            for (count, wanted), (verb, what) in zip(pairs, of, strict=True):
                if count > wanted or (count < wanted and not self.at_most):
                    more = "more" if count > wanted else "fewer"
                    raise Wrong(f"{name} {verb} {more} {what} than expected: {self.why}")


def unchanged(kept: Mapping[str, bool], whose: str) -> Iterator[Never]:
    """For each argument, {"the labels": False}, that it is what it was before."""
    for name, same in kept.items():
        yield Never(not same, f"{whose} changes {name}, which others still need")


Row: TypeAlias = Must | Never | Sends
# None keeps the rows of ranks beside each other; a generator is read to its end in one go.
Rows: TypeAlias = Iterable["Row | Iterator[Any] | None"]


def _sentence(where: str, words: str) -> str:
    """Words that go on with a comma or a space do so; others stand behind a colon."""
    return where + ("" if not where or words[:1] in (",", " ") else ": ") + words


def expect(*sides: tuple[str, Rows]) -> None:
    """Raise Wrong at the first row that fails, of (where, rows) that are read side by side."""
    for rows in zip_longest(*(rows for _, rows in sides)):
        for (where, _), row in zip(sides, rows, strict=True):
            if isinstance(row, Iterator):
                expect((where, row))
            elif row is not None:
                row.check(where)


# --- what kind of wrong a difference is: a factor, a part, a shape ---------------------------


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


def others_parts(parts: Sequence[Any], place: int, what: str = "the part") -> dict[str, Any]:
    """What a rank might have by mistake, where it should have the part of its `place`."""
    return {f"{what} of rank {n}": part for n, part in enumerate(parts) if n != place}
