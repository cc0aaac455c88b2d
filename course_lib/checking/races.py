"""Benchmarks the learner's builds against the course's version and torch's."""

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
    """How a build is benchmarked: `prepare(parts)`, called on a rank, returns the timed function.

    `parts` has the build's functions and classes as attributes. `torch()` returns the equivalent
    with torch's own implementation; None if torch has none.
    """

    what: str
    prepare: Callable[[SimpleNamespace], Callable[[], object]]
    torch: Callable[[], Callable[[], object]] | None = None
    ranks: int = 2


@dataclass(frozen=True)
class Lap:
    """One version: seconds of its fastest run on the slowest rank, and what rank 0 sent in it."""

    whose: str
    seconds: float
    sent: "dict[str, Total]"

    def line(self) -> str:
        """The result as one line of text."""
        sent = ", ".join(f"{t.calls} x {name}, {t.size_bytes:,} B" for name, t in self.sent.items())
        return f"{self.whose:<13}{1000 * self.seconds:>9.2f} ms   {sent or 'sends nothing'}"


def race(exercise_id: str) -> list[Lap]:
    """Print and return a build's speed and bytes compared with the course's version and torch's.

    All versions alternate in one launch, so that a busy machine slows them alike. Raises Problem
    for an exercise that has no race, or is not built yet.
    """
    exercise = find(exercise_id)
    if exercise.race is None:
        raise Problem(f"{exercise_id} is not raced: choose a build whose chapter offers a stretch")
    spec: Race = exercise.race
    part = mine.BY_FILE[exercise.part]
    if not mine.is_mine(part.names[0]):
        raise Problem(f"{exercise_id} is not built yet: pass its check first")
    laps = run_race(spec, part)
    ranks = f"{spec.ranks} ranks" if spec.ranks > 1 else "one rank"
    print(f"{exercise.title}: {spec.what}, {ranks}")
    for lap in laps:
        print(f"  {lap.line()}")
    return laps


def run_race(spec: Race, part: mine.Part) -> list[Lap]:
    """The laps of all available versions, the learner's first."""
    whose = ["mine", "course"] if mine.is_mine(part.names[0]) else ["course"]
    found = launch.run(
        _on_rank, spec, part, whose, ranks=spec.ranks, timeout_s=_LIMIT_S, stream=False
    )
    names = {"mine": "yours", "course": "the course's", "torch": "torch's"}
    return [
        Lap(names[key], max(one[key][0] for one in found), found[0][key][1]) for key in found[0]
    ]


def _on_rank(
    spec: Race, part: mine.Part, whose: Sequence[str]
) -> "dict[str, tuple[float, dict[str, Total]]]":
    """Run on a rank: {version: (best time in seconds, what it sends)}."""
    import torch.distributed as dist

    from course_lib.measure.wire import log_wire

    versions = {
        key: spec.prepare(SimpleNamespace(**{name: mine.get(name, key) for name in part.names}))
        for key in whose
    }
    if spec.torch:
        versions["torch"] = spec.torch()
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
    """JSON-serializable data on every part: its file, its lines and the course's, problems.

    `measured`: include the times and bytes of all versions, which takes seconds per part.
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
        "borrowed": [],  # the course's names that the file imports; then it is not the learner's
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


def _raced(spec: Race, part: mine.Part) -> dict[str, Any]:
    """The laps as lines, and the ratio of the learner's time to the course's, if built."""
    try:
        laps = run_race(spec, part)
    except launch.RankFailed as error:
        return {"laps": [f"rank {error.rank} {error.reason.splitlines()[0]}"]}
    result: dict[str, Any] = {"laps": [lap.line() for lap in laps]}
    by_name = {lap.whose: lap.seconds for lap in laps}
    if "yours" in by_name:
        result["times_the_course"] = by_name["yours"] / by_name["the course's"]
    return result


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
