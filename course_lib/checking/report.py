"""`course progress`: what is done and what is left, chapter by chapter."""

from typing import Any

from course_lib.checking import progress
from course_lib.checking.exercises import chapters, exercises_of


def summary() -> dict[str, Any]:
    """Everything recorded, beside every exercise that exists; ready for JSON."""
    kept = progress.read()
    exercises = []
    for chapter in chapters():
        for exercise in exercises_of(chapter):
            record = kept["exercises"].get(exercise.id, {})
            exercises.append(
                {
                    "id": exercise.id,
                    "title": exercise.title,
                    "kind": exercise.kind,
                    "status": record.get("status", "todo"),
                    "attempts": record.get("attempts", 0),
                    "hints": record.get("hints", 0),
                    "first_pass": record.get("first_pass"),
                }
            )
    return {
        "file": str(progress.path()),
        "exercises": exercises,
        "predictions": kept["predictions"],
        "quizzes": kept["quizzes"],
    }


def as_text(data: dict[str, Any]) -> str:
    """The summary as lines for a terminal."""
    lines = []
    for row in data["exercises"]:
        notes = [_counted(row["attempts"], "try", "tries"), _counted(row["hints"], "hint", "hints")]
        notes = [note for note in notes if note]
        tail = f"  ({', '.join(notes)})" if notes else ""
        lines.append(f"[{row['status']}] {row['id']:<5} {row['kind']:<9} {row['title']}{tail}")
    passed = sum(row["status"] == "pass" for row in data["exercises"])
    lines.append(f"{passed} of {len(data['exercises'])} exercises passed")
    for chapter, score in sorted(data["quizzes"].items()):
        lines.append(f"quiz {chapter}: best {score.get('best')} of {score.get('of')}")
    if data["predictions"]:
        lines.append(f"{len(data['predictions'])} predictions committed")
    lines.append(f"kept in {data['file']}")
    return "\n".join(lines)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}" if count else ""
