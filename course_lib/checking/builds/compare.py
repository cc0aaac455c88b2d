"""Steps of builds: what runs on each rank in each case, and the rows that its results must meet."""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from course_lib import launch
from course_lib.checking import own_work
from course_lib.checking.build import Step
from course_lib.checking.builds.lazily import dist
from course_lib.checking.builds.rows import Rows, expect
from course_lib.checking.exercises import Wrong
from course_lib.checking.own_work import is_learners

if TYPE_CHECKING:
    from course_lib.checking.builds.on_rank.watched import Outcome


@dataclass(frozen=True)
class Case:
    """A case that a step tries, and its number of ranks.

    `in_group`: the process groups are rank 1 alone and all other ranks together. `backward`: check
    the gradients as well, in steps that have cases with and without them.
    """

    ranks: int = field(default=2, kw_only=True)
    in_group: bool = field(default=False, kw_only=True)
    backward: bool = field(default=False, kw_only=True)

    def lines(self) -> list[list[int]]:
        """The ranks of each process group."""
        everyone = list(range(self.ranks))
        return [[0, *everyone[2:]], [1]] if self.in_group else [everyone]

    def line(self, rank: int) -> list[int]:
        """The ranks of the group of `rank`."""
        return next(line for line in self.lines() if rank in line)

    def words(self, line: Sequence[int]) -> str:
        """A phrase that describes the case for the group `line`; "" without groups."""
        return f"in the group of ranks {line}" if self.in_group else ""

    def who(self, rank: int, line: Sequence[int]) -> str:
        """A phrase that describes the case for `rank` in the group `line`."""
        words = self.words(line)
        return f"rank {rank} of {self.ranks}" + (f", {words}" if words else "")


class Here(Case):
    """A case whose rows name ranks and groups themselves, so it adds no phrases."""

    def who(self, _rank: int, _line: Sequence[int]) -> str:
        return ""

    def words(self, _line: Sequence[int]) -> str:
        return ""


class Place(NamedTuple):
    """A rank in its group, the group's size, the case, and the results of all the group's ranks."""

    rank: int
    ranks: int
    case: Any
    every: Sequence[Any]

    @property
    def line(self) -> list[int]:
        """The global ranks of its group."""
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
    """A step that runs on ranks and compares the result of each.

    run(parts, case, group)  on a rank; `group` is None for the default group
    rows(found, place)       for each rank's result
    last([found, …], case)   for each group's results, after the rows

    Consecutive cases with the same number of ranks share a launch. A `run` may be a generator: its
    first yield pauses it until all cases have got there, its second yields the result.
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
    """Run all cases on a rank; return their results. An error names the case that raised it."""
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
    """A step that runs in this process: calls each function rows(parts) in turn."""

    def check(parts: SimpleNamespace) -> None:
        for each in rows:
            expect(("", each(parts)))

    return Step(title, needs, check)


def in_turn(title: str, needs: tuple[str, ...], *steps: Step) -> Step:
    """Combine several steps, each with a launch of its own, into one."""

    def check(parts: SimpleNamespace) -> None:
        for step in steps:
            step.check(parts)

    return Step(title, needs, check)


# --- Running a step on ranks, and describing failures there ---------------------------------------

# The ranks of a check start in 0.2 s, and no step computes for longer than that.
LIMIT_S = 6.0
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in ', re.M)
_HUNG = re.compile(r"^rank (\d+) was here:\n(.*?)(?=^rank \d+ was here:|\Z)", re.M | re.S)


def on_ranks(work: Callable[..., Any], *args: Any, ranks: int) -> "list[Outcome]":
    """Run `work(*args)` on every rank. Raises Wrong if a rank raises, dies or hangs."""
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
    # Cut the advice that is meant for users who call launch.run themselves.
    reason = failed.reason.partition("\n")[0].partition("; pass check_collectives")[0]
    place, own = _at(failed.traceback), folder / str(failed.rank)
    if not (place or "Traceback" in failed.traceback) and (
        line := _latest(own, line=True)
    ):  # it was killed: there is no traceback
        place = f"; its latest call is at {line}"
    return f"{many}, rank {failed.rank} {reason}{place}"


def _latest(log: Path, line: bool = False) -> str:
    """A phrase on a rank's last call, or with `line` the learner's line that made it, or ""."""
    try:
        words, _, where = log.read_text(encoding="utf-8", errors="replace").partition("\n")
    except OSError:
        words, where = "", ""
    return where.strip() if line else words.strip() or "has sent nothing yet"


def _at(text: str) -> str:
    """The innermost line of the learner's code in a traceback's text, to end a sentence, or ""."""
    lines = text.splitlines()
    for index in reversed(range(len(lines))):
        frame = _FRAME.match(lines[index])
        if frame and is_learners(frame["file"]):
            code = lines[index + 1].strip() if index + 1 < len(lines) else ""
            return f", at line {frame['line']} of your code" + (f", `{code}`" if code else "")
    return ""
