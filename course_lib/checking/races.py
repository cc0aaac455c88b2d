"""What a learner has built, measured beside the course's own version and torch's."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from course_lib import launch, mine
from course_lib.checking.exercises import find
from course_lib.problem import Problem

if TYPE_CHECKING:
    from course_lib.trace import Total

_ROUNDS, _LIMIT_S = 7, 60.0


@dataclass(frozen=True)
class Race:
    """How a build is measured: `prepare(parts)` runs on a rank and returns what is timed.

    `parts` has the build's functions and classes by name. `torch`: the same with torch's own, or
    None where torch has nothing of the kind.
    """

    what: str
    prepare: Callable[[SimpleNamespace], Callable[[], object]]
    torch: Callable[[], Callable[[], object]] | None = None
    ranks: int = 2


@dataclass(frozen=True)
class Lap:
    """One version: seconds of its fastest run on the slowest rank, and what a rank sent in it."""

    whose: str
    seconds: float
    sent: "dict[str, Total]"

    def line(self) -> str:
        """The version in one line."""
        sent = ", ".join(f"{t.calls} x {name}, {t.size_bytes:,} B" for name, t in self.sent.items())
        return f"{self.whose:<13}{1000 * self.seconds:>9.2f} ms   {sent or 'sends nothing'}"


def race(exercise_id: str) -> list[Lap]:
    """Print a build's speed and bytes beside those of the course and of torch; returns them.

    All versions run in turn in one launch, so that a busy machine slows them alike. Raises Problem
    for an exercise that is no build, or is not built yet.
    """
    exercise = find(exercise_id)
    if exercise.race is None:
        raise Problem(f"{exercise_id} is not raced: choose a build whose chapter offers a stretch")
    its: Race = exercise.race
    part = mine.BY_FILE[exercise.part]
    if not mine.is_mine(part.names[0]):
        raise Problem(f"{exercise_id} is not built yet: pass its check first")
    laps = run_race(its, part)
    ranks = f"{its.ranks} ranks" if its.ranks > 1 else "one rank"
    print(f"{exercise.title}: {its.what}, {ranks}")
    for lap in laps:
        print(f"  {lap.line()}")
    return laps


def run_race(its: Race, part: mine.Part) -> list[Lap]:
    """The laps of all versions that there are, the learner's first."""
    whose = ["mine", "course"] if mine.is_mine(part.names[0]) else ["course"]
    found = launch.run(
        _on_rank, its, part, whose, ranks=its.ranks, timeout_s=_LIMIT_S, stream=False
    )
    names = {"mine": "yours", "course": "the course's", "torch": "torch's"}
    return [
        Lap(names[key], max(one[key][0] for one in found), found[0][key][1]) for key in found[0]
    ]


def _on_rank(
    its: Race, part: mine.Part, whose: Sequence[str]
) -> "dict[str, tuple[float, dict[str, Total]]]":
    """On a rank: the best time of each version, and what it sends."""
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire

    versions = {
        key: its.prepare(SimpleNamespace(**{name: mine.get(name, key) for name in part.names}))
        for key in whose
    }
    if its.torch:
        versions["torch"] = its.torch()
    best = dict.fromkeys(versions, float("inf"))
    sent = {}
    for _ in range(_ROUNDS):
        for key, once in versions.items():
            dist.barrier()
            start = time.perf_counter()
            once()
            best[key] = min(best[key], time.perf_counter() - start)
    for key, once in versions.items():
        with log_wire() as wire:
            once()
        sent[key] = wire.sent()
    return {key: (best[key], sent[key]) for key in versions}


def report(measured: bool = False) -> dict[str, Any]:
    """Every part: whose it is, where it is kept, its lines beside the course's; ready for JSON.

    `measured`: with the milliseconds and the bytes of every version, which takes seconds a part.
    """
    return {
        "folder": str(mine.folder()),
        "parts": [_row(part, measured) for part in mine.PARTS],
    }


def _row(part: mine.Part, measured: bool) -> dict[str, Any]:
    exercise, built = find(part.build), mine.is_mine(part.names[0])
    row: dict[str, Any] = {
        "build": part.build,
        "title": exercise.title,
        "names": list(part.names),
        "file": str(mine.file_of(part)) if built else None,
        "lines": None,
        "lines_of_the_course": mine.lines(part, "course"),
        "borrowed": [],  # what of the course's own the file takes, which then is not the learner's
        "problem": "",
    }
    try:
        if borrowed := mine.borrowed(part):
            return row | {"file": None, "borrowed": borrowed}
        row["lines"] = mine.lines(part)
        if built:
            mine.get(part.names[0])
    except Problem as problem:
        return row | {"problem": str(problem)}
    if measured and exercise.race:
        row |= {"race": exercise.race.what, **_raced(exercise.race, part)}
    return row


def _raced(its: Race, part: mine.Part) -> dict[str, Any]:
    """The laps in lines, and the time of the learner's over the course's, if there is one."""
    try:
        laps = run_race(its, part)
    except launch.RankFailed as error:
        return {"laps": [f"rank {error.rank} {error.reason.splitlines()[0]}"]}
    found: dict[str, Any] = {"laps": [lap.line() for lap in laps]}
    by_name = {lap.whose: lap.seconds for lap in laps}
    if "yours" in by_name:
        found["times_the_course"] = by_name["yours"] / by_name["the course's"]
    return found


def as_text(data: dict[str, Any]) -> str:
    """The report as lines for a terminal."""
    lines = []
    for row in data["parts"]:
        whose = f"yours, {row['lines']} lines" if row["file"] else "not built yet"
        if row["borrowed"]:
            whose = f"not yours, it takes the course's {', '.join(row['borrowed'])}"
        if row["problem"]:
            whose = "cannot be loaded"
        course = f"the course's {row['lines_of_the_course']}"
        lines.append(f"{row['build']:<6}{row['title']:<42}{whose} ({course})")
        lines += [f"      {row['problem']}"] if row["problem"] else []
        lines += [f"      {line}" for line in row.get("laps", ())]
    built = sum(bool(row["file"] and not row["problem"]) for row in data["parts"])
    lines.append(f"{built} of {len(data['parts'])} parts are yours, kept in {data['folder']}")
    return "\n".join(lines)
