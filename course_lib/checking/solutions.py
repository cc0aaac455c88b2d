"""`solution("7.2")`: the answer to an exercise, from the solved notebook of its chapter."""

import json
import re
from pathlib import Path
from typing import Any

from course_lib.checking import progress
from course_lib.checking.exercises import find
from course_lib.problem import Problem
from course_lib.show import Source

_FOLDER = Path(__file__).parents[2] / "solutions"


def solution(exercise_id: str) -> Source:
    """The cells that solve an exercise; from then on it counts as seen.

    Raises Problem where the solutions are not installed, ValueError for an unknown exercise.
    """
    exercise = find(exercise_id)
    cells = _cells_of(exercise.id)
    progress.update("exercises", exercise_id, _seen)
    return Source("\n\n".join(cells), f"Solution of {exercise.id}")


def _seen(record: dict[str, Any]) -> None:
    # What was passed before stays passed by the learner alone.
    if record.get("status") != "pass":
        record["seen"] = True


def _cells_of(exercise_id: str) -> list[str]:
    chapter = int(exercise_id.partition(".")[0])
    paths = sorted(_FOLDER.glob(f"{chapter:02}_*.ipynb"))
    if not paths:
        raise Problem(f"solutions/ is not here, so {exercise_id} cannot be shown: use a clone")
    notebook = json.loads(paths[0].read_text(encoding="utf-8"))
    found, inside = [], False
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        heading = re.match(r"### (\d+\.\d+)", source) if cell["cell_type"] == "markdown" else None
        if heading:
            inside = heading[1] == exercise_id
        elif inside and cell["cell_type"] == "code":
            found.append(source)
    return found
