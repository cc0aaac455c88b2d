"""The rows of a build: conditions on the learner's results, and the error text of each.

`Must` (a tensor), `Never` (a condition that makes the work wrong, and its error text) and `Sends`
(the messages). The rows of all ranks are checked in parallel, so the error is that of the first row
that fails on any rank.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from course_lib.checking.builds.lazily import torch
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.trace import Trace

# Rounding of float32 sums in another order.
TOLERANCE = 1e-5
Sent: TypeAlias = Mapping[str, tuple[int, int]]  # calls and bytes by operation


class Must(NamedTuple):
    """Requires that `found` equals the tensor `right`; `others` and `factors` explain mistakes.

    `others`: {"the part of rank 2": a tensor}; `factors`: {2.0: "the sum instead of the mean"}.
    """

    what: str
    found: Any
    right: Any
    others: Mapping[str, Any] = {}
    factors: Mapping[float, str] = {}
    tolerance: float = TOLERANCE  # relative to the largest absolute value in `right`
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
    """Requires that `wrong` is false; `words` is the error text."""

    wrong: object
    words: str

    def check(self, where: str) -> None:
        """Raise Wrong, in words that begin with `where`, unless it is so."""
        if self.wrong:
            raise Wrong(_sentence(where, self.words))


class Sends(NamedTuple):
    """Requires that `log` has the calls and bytes of `right`, by operation.

    `right` may be a Trace: then those of its rank `who`. In a group of one rank, nothing.
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
    """Rows requiring each argument to be unchanged: {"the labels": whether it is unchanged}."""
    for name, same in kept.items():
        yield Never(not same, f"{whose} changes {name}, which others still need")


Row: TypeAlias = Must | Never | Sends
# None is a placeholder that keeps the rows of ranks aligned; a nested iterator is one row.
Rows: TypeAlias = Iterable["Row | Iterator[Any] | None"]


def _sentence(where: str, words: str) -> str:
    """Join `where` and `words`: directly if these begin with a comma or a space, else by ": "."""
    return where + ("" if not where or words[:1] in (",", " ") else ": ") + words


def expect(*sides: tuple[str, Rows]) -> None:
    """Raise Wrong at the first row that fails; the rows of all (where, rows) run in parallel."""
    for rows in zip_longest(*(rows for _, rows in sides)):
        for (where, _), row in zip(sides, rows, strict=True):
            if isinstance(row, Iterator):
                expect((where, row))
            elif row is not None:
                row.check(where)


# --- how a tensor differs: a factor, another rank's part, some elements ---------------------


def _kind(
    found: Any, expected: Any, limit: float, factors: Mapping[float, str], others: Mapping[str, Any]
) -> str:
    """Describe how `found` differs from `expected`, where elements may differ by `limit`."""
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


def others_parts(parts: Sequence[Any], rank: int, what: str = "the part") -> dict[str, Any]:
    """The `others` of a Must row: all parts that a rank might have instead of its own."""
    return {f"{what} of rank {n}": part for n, part in enumerate(parts) if n != rank}
