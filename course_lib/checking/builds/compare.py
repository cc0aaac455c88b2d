"""A step of a build as data: what runs on each rank in each case, and what must come out of it.

What must come out is told by a generator of rows: `Must` (a tensor), `Never` (a condition in which
the work is refused, and the words) and `Sends` (the messages). Rows of all ranks are looked at side
by side, so the first one that fails is told, on whichever rank. `torch`, `nn` and `dist` are loaded
when something of them is used: a step can be declared without them.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby, zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from course_lib import launch
from course_lib.checking import own_work
from course_lib.checking.build import Step
from course_lib.checking.exercises import Unanswered, Wrong
from course_lib.checking.helpers import described
from course_lib.checking.own_work import is_learners
from course_lib.trace import Trace


class _Later:
    """A module that is imported when something of it is asked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # it travels to ranks
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


def later(module: str) -> Any:
    """A module that loads torch, to be named at the head of a build."""
    return _Later(module)


if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn

    from course_lib.checking.builds.on_rank.watched import Outcome
else:
    torch, dist, nn = map(_Later, ("torch", "torch.distributed", "torch.nn"))

__all__ = ["dist", "nn", "torch"]  # builds take these from here
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
        what, found, right = _told(where, self.what), self.found, self.right
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
            raise Wrong(_told(where, self.words))


class Sends(NamedTuple):
    """`log` has these calls and bytes by operation, or those of a Trace of which it is `who`."""

    log: Any
    right: Sent | Trace
    why: str
    at_most: bool = False
    among: int = 0  # ranks of the group in which each call is made; 0: any
    what: str = ""
    who: int = 0

    def check(self, where: str) -> None:
        """Raise Wrong, in words that begin with `where`, unless it is so."""
        where = _told(where, self.what) if self.what else where
        for call in self.log.calls if self.among else ():
            if call.part != self.among:
                raise Wrong(
                    f"{where}: its {call.what} is among {call.part} ranks, and the group that it "
                    f"gets has {self.among}"
                )
        right = self.right.sent(self.who) if isinstance(self.right, Trace) else self.right
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


def _told(where: str, words: str) -> str:
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


@dataclass(frozen=True)
class Case:
    """What a step tries, and among how many ranks.

    `in_group`: all ranks but rank 1 are one group, and rank 1 another by itself.
    """

    ranks: int = field(default=2, kw_only=True)
    in_group: bool = field(default=False, kw_only=True)

    def lines(self) -> list[list[int]]:
        """The groups."""
        everyone = list(range(self.ranks))
        return [[0, *everyone[2:]], [1]] if self.in_group else [everyone]

    def line(self, rank: int) -> list[int]:
        """The ranks that share a group with this one."""
        return next(line for line in self.lines() if rank in line)

    def words(self, line: Sequence[int]) -> str:
        """The case in words, in one of its groups."""
        return f"in the group of ranks {line}" if self.in_group else ""

    def who(self, rank: int, line: Sequence[int]) -> str:
        """The case in words, on one of its ranks."""
        words = self.words(line)
        return f"rank {rank} of {self.ranks}" + (f", {words}" if words else "")


class Here(Case):
    """Its words say themselves who a rank is, and in which group."""

    def who(self, _rank: int, _line: Sequence[int]) -> str:
        return ""

    def words(self, _line: Sequence[int]) -> str:
        return ""


class Place(NamedTuple):
    """Where a rank stands: its number in its group, the group's size, the case, what all found."""

    rank: int
    ranks: int
    case: Any
    every: Sequence[Any]

    @property
    def line(self) -> list[int]:
        """The ranks of its group, by their numbers among all."""
        return next(line for line in self.case.lines() if len(line) == self.ranks)


def compare(
    title: str,
    needs: tuple[str, ...],
    run: Callable[..., Any],
    rows: Callable[..., Rows],
    cases: Sequence[Any] = (Case(),),
    *,
    last: Callable[..., Rows] | None = None,
) -> Step:
    """A step that runs on ranks, and compares what each of them finds.

    run(parts, case, group)  on a rank; `group` is None for that of all ranks
    rows(found, place)       for each rank
    last([found, …], case)   for each group, after that

    Cases with as many ranks, one behind the other, share one launch. A `run` that yields waits
    there until all of them are as far, and yields at last what it has found.
    """

    def check(parts: SimpleNamespace) -> None:
        for ranks, several in groupby(cases, key=lambda case: case.ranks):
            alike = list(several)
            outcomes = on_ranks(_on_rank, run, parts, alike, ranks=ranks)
            for number, case in enumerate(alike):
                for line in case.lines():
                    found = [outcomes[rank].value[number] for rank in line]
                    _expect_group(found, case, line)

    def _expect_group(found: list[Any], case: Any, line: list[int]) -> None:
        sides = (
            (case.who(rank, line), rows(found[n], Place(n, len(line), case, found)))
            for n, rank in enumerate(line)
        )
        expect(*sides)
        if last:
            more = f", {words}" if (words := case.words(line)) else ""
            expect((f"on {len(line)} ranks{more}", last(found, case)))

    return Step(title, needs, check)


def _on_rank(run: Any, parts: SimpleNamespace, cases: Sequence[Any]) -> list[Any]:
    """On a rank: the work in each case. An error is told with the case in which it came."""
    from course_lib.checking.builds.on_rank.watched import in_case, own_group

    found, group = [], None
    for case in cases:
        if case.in_group and group is None:
            group = own_group()
        words = case.words(case.line(dist.get_rank()))
        with in_case(words) if words else nullcontext():
            found.append(run(parts, case, group if case.in_group else None))
            if isinstance(found[-1], Iterator):
                next(found[-1])
    return [next(one) if isinstance(one, Iterator) else one for one in found]


def compare_here(
    title: str, needs: tuple[str, ...], *rows: Callable[[SimpleNamespace], Rows]
) -> Step:
    """A step that runs in this process: rows(parts), one function of them after the other."""

    def check(parts: SimpleNamespace) -> None:
        for each in rows:
            expect(("", each(parts)))

    return Step(title, needs, check)


def in_turn(title: str, needs: tuple[str, ...], *steps: Step) -> Step:
    """One step of several, each of which has a launch of its own."""

    def check(parts: SimpleNamespace) -> None:
        for step in steps:
            step.check(parts)

    return Step(title, needs, check)


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


def others_parts(parts: Sequence[Any], place: int) -> dict[str, Any]:
    """What a rank might have by mistake, where it should have the part of its `place`."""
    return {f"the part of rank {n}": part for n, part in enumerate(parts) if n != place}


# --- Running it on ranks, and a sentence on what went wrong there ---------------------------------

# Ranks of a check start in 0.2 s, and no step computes for longer than that.
LIMIT_S = 6.0
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in ', re.M)
_HUNG = re.compile(r"^rank (\d+) was here:\n(.*?)(?=^rank \d+ was here:|\Z)", re.M | re.S)


def on_ranks(work: Callable[..., Any], *args: Any, ranks: int) -> "list[Outcome]":
    """`work(*args)` on every rank. Raises Wrong for a rank that raises, dies or hangs."""
    from course_lib.checking.builds.on_rank.watched import followed

    with tempfile.TemporaryDirectory(prefix="course_check_", ignore_cleanup_errors=True) as name:
        try:
            own = own_work.followed()
            outcomes = launch.run(
                followed, work, args, name, own, ranks=ranks, timeout_s=LIMIT_S, stream=False
            )
            own_work.note({each for one in outcomes for each in one.borrowed})
            return outcomes
        except launch.RankFailed as failed:
            raise Wrong(_sentence(failed, ranks, Path(name))) from None


def _sentence(failed: launch.RankFailed, ranks: int, folder: Path) -> str:
    many = f"on {ranks} ranks" if ranks > 1 else "on one rank"
    computes = failed.reason.startswith("was still computing")
    if computes or failed.reason.startswith("hung"):
        places = dict(_HUNG.findall(failed.traceback))
        where = (
            f"rank {rank} {_latest(folder / str(rank))}{_at(places.get(str(rank), ''))}"
            for rank in range(ranks)
        )
        state = "nothing moves any more"
        if computes:
            state = f"rank {failed.rank} still computes (a loop without an end, or a busy machine?)"
        return f"{many} {state} after {LIMIT_S:g} s: {'; '.join(where)}"
    # What follows is for those who launch ranks themselves.
    reason = failed.reason.partition("\n")[0].partition("; pass check_collectives")[0]
    place, own = _at(failed.traceback), folder / str(failed.rank)
    if not (place or "Traceback" in failed.traceback) and (
        line := _latest(own, line=True)
    ):  # it was killed: there is no traceback
        place = f"; its latest call is at {line}"
    return f"{many}, rank {failed.rank} {reason}{place}"


def _latest(diary: Path, line: bool = False) -> str:
    """What a rank did last in words, or the `line` of the learner's that did it, "" for none."""
    try:
        words, _, place = diary.read_text(encoding="utf-8", errors="replace").partition("\n")
    except OSError:
        words, place = "", ""
    return place.strip() if line else words.strip() or "has sent nothing yet"


def _at(text: str) -> str:
    """The last line of the learner's code in a traceback that came as a text, to end a sentence."""
    lines = text.splitlines()
    for place in reversed(range(len(lines))):
        frame = _FRAME.match(lines[place])
        if frame and is_learners(frame["file"]):
            code = lines[place + 1].strip() if place + 1 < len(lines) else ""
            return f", at line {frame['line']} of your code" + (f", `{code}`" if code else "")
    return ""
