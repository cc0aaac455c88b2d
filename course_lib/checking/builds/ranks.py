"""Runs what a learner has built on several ranks, and says in a sentence what went wrong there."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib import launch
from course_lib.checking import own_work
from course_lib.checking.exercises import Wrong
from course_lib.checking.own_work import is_learners

if TYPE_CHECKING:
    from course_lib.checking.builds.on_rank.watched import Outcome

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
