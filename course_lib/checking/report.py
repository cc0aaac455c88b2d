"""The data and text of `course progress`: what is done and what is left, by chapter."""

import math
from itertools import groupby
from typing import Any

from course_lib.checking import progress
from course_lib.checking.exercises import chapters, exercises_of
from course_lib.checking.gaps import how_far
from course_lib.checking.hunts import CAUSES
from course_lib.outline import TITLES
from course_lib.sittings import ROUTES, Route, Sitting

_WIDTH = 41
_SCALE_HEAD = f"{'1/100':<9}{'1/10':<10}{'1':<9}{'10':<9}100"


def summary() -> dict[str, Any]:
    """All records, with a row for every existing exercise; JSON-serializable."""
    kept = progress.read()
    nothing = {"status": "todo", "attempts": 0, "hints": 0, "first_pass": None, "seen": False}
    exercises = []
    for exercise in (each for chapter in chapters() for each in exercises_of(chapter)):
        record = nothing | kept["exercises"].get(exercise.id, {})
        row = {"id": exercise.id, "title": exercise.title, "kind": exercise.kind}
        exercises.append(row | {name: record[name] for name in nothing})
    others = {section: kept[section] for section in ("predictions", "hunts", "quizzes")}
    data = {"file": str(progress.path()), "exercises": exercises, **others}
    return data | {"route": on_route(kept)}


# --- Where one is on a route ----------------------------------------------------------------------


def chosen(kept: dict[str, Any]) -> Route:
    """The route that the learner chose by these records, else the thread."""
    name = kept["route"].get("chosen", {}).get("name")
    return ROUTES.get(name, ROUTES["thread"])


def choose(name: str) -> None:
    """Keep a route for `course progress` and `course lab`. Raises ValueError if it is unknown."""
    if name not in ROUTES:
        raise ValueError(f"route must be one of {', '.join(ROUTES)}, got {name!r}: choose one")
    progress.update("route", "chosen", lambda record: record.update(name=name))


def next_notebook() -> str:
    """The notebook that comes next on the learner's route; "" before the first is done."""
    at = on_route(progress.read())
    return f"notebooks/{at['next']}.ipynb" if at["done"] and at["next"] else ""


def on_route(kept: dict[str, Any]) -> dict[str, Any]:
    """How much of the chosen route is done by these records, and which sitting comes next."""
    route = chosen(kept)
    own = route.sittings()
    passed = {key for key, record in kept["exercises"].items() if record.get("status") == "pass"}
    made = {key for key, record in kept["predictions"].items() if "yours" in record}
    done = [_is_done(sitting, route, passed, made) for sitting in own]
    last = max((index for index, each in enumerate(done) if each), default=-1)
    order = [*range(last + 1, len(own)), *range(last + 1)]
    todo = [own[index].name for index in order if not done[index]]
    left = sum(route.minutes(own[index]) for index, each in enumerate(done) if not each)
    return {
        "name": route.name,
        "sittings": len(own),
        "done": sum(done),
        "hours": route.hours,
        "hours_left": left / 60,
        "next": todo[0] if todo else None,
    }


def _is_done(sitting: Sitting, route: Route, passed: set[str], made: set[str]) -> bool:
    """Whether all its exercises on the route have passed and half of its predictions are made."""
    exercises = [task.id for task in route.tasks(sitting)]
    predicted = sum(key in made for key in sitting.predictions)
    begun = predicted or passed & {task.id for task in sitting.exercises}
    return (
        bool(begun) and passed.issuperset(exercises) and 2 * predicted >= len(sitting.predictions)
    )


def in_brief() -> str:
    """One line: how many exercises have passed, and the first open one after the last of them."""
    return _in_brief(summary()["exercises"])


def _in_brief(rows: list[dict[str, Any]]) -> str:
    passed = [index for index, row in enumerate(rows) if row["status"] == "pass"]
    last = max(passed, default=-1)
    todo = [row for row in rows[last + 1 :] + rows[:last] if row["status"] != "pass"]
    tail = f", next: {todo[0]['id']} {todo[0]['title']}" if todo else ""
    return f"{len(passed)} of {len(rows)} exercises passed{tail}"


def as_text(data: dict[str, Any]) -> str:
    """The summary as text: one line per chapter, and its exercises if it was begun."""
    lines = []
    for chapter, own in groupby(data["exercises"], lambda row: row["id"].partition(".")[0]):
        rows = list(own)
        passed = sum(row["status"] == "pass" for row in rows)
        lines.append(
            f"{chapter:>2} {TITLES[int(chapter)]}: {passed} of {len(rows)} exercises passed"
        )
        if any(row["attempts"] or row["hints"] or row["seen"] for row in rows):
            lines += _exercise_lines(rows)
    lines.append(_in_brief(data["exercises"]))
    for chapter, score in sorted(data["quizzes"].items()):
        lines.append(f"quiz {chapter}: best {score.get('best')} of {score.get('of')}")
    if data["hunts"]:
        found = sum("best_s" in record for record in data["hunts"].values())
        lines.append(f"the hunt: {found} of {len(CAUSES)} faults found, see `course hunt --table`")
    lines += predictions_lines(data["predictions"])
    lines += [_route_line(data["route"]), f"kept in {data['file']}"]
    return "\n".join(lines)


def _route_line(at: dict[str, Any]) -> str:
    done = f"{at['done']} of {at['sittings']} sittings done"
    hours = f"about {at['hours_left']:.0f} of {at['hours']:.0f} hours left"
    tail = f", next: notebooks/{at['next']}.ipynb" if at["next"] else ""
    return f"route {at['name']}: {done}, {hours}{tail}"


def _exercise_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        notes = [
            f"{row[name]} {one if row[name] == 1 else many}"
            for name, one, many in (("attempts", "try", "tries"), ("hints", "hint", "hints"))
            if row[name]
        ]
        notes += ["solution seen"] * row["seen"]
        tail = f"  ({', '.join(notes)})" if notes else ""
        lines.append(f"[{row['status']}] {row['id']:<5} {row['kind']:<9} {row['title']}{tail}")
    return lines


def predictions_lines(kept: dict[str, dict[str, Any]]) -> list[str]:
    """Lines on how far each prediction was off, on a logarithmic scale and in words."""
    made = {key: record for key, record in kept.items() if "yours" in record}
    if not made:
        return []
    closed = {key: record for key, record in made.items() if "found" in record}
    lines = [f"{len(made)} predictions committed, {len(closed)} of them compared with what came"]
    if closed:
        lines.append(f"{'':<22}{_SCALE_HEAD}   your number over what came")
    for key in sorted(closed, key=_by_number):
        yours, found = closed[key]["yours"], closed[key]["found"]
        lines.append(f"{key:<22}{_on_scale(yours, found)}   {how_far(yours, found)}")
    return lines


def _by_number(key: str) -> tuple[float, str]:
    """Sort key by chapter number: "10.tp" comes after "9.extra"."""
    chapter = key.partition(".")[0]
    return (float(chapter) if chapter.isdigit() else math.inf, key)


def _on_scale(yours: float, found: float) -> str:
    """A logarithmic scale from 1/100 to 100 with a mark at yours / found, if that is positive."""
    line = ["·"] * _WIDTH
    line[_WIDTH // 2] = "|"
    if yours and found and (yours > 0) == (found > 0):
        position = (math.log10(yours / found) + 2) / 4
        line[round(min(max(position, 0), 1) * (_WIDTH - 1))] = "●"
    return "".join(line)
