"""The lines of one notebook's grading: one for each exercise of its chapter."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from course_lib.checking.exercises import Exercise
from course_lib.checking.grading import Verdict
from course_lib.checking.submissions.notebook import Notebook


@dataclass(frozen=True)
class Row:
    """One exercise: status pass, fail, todo, stopped (no verdict was reached) or missing.

    Missing means that no cell of the notebook checks it.
    """

    id: str
    status: str
    reason: str
    line: str


@dataclass
class Outcome:
    """What became of a notebook's cells, by their places, and why it was ended, if it was."""

    faults: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    ended: str = ""

    def leave(self, place: int, fault: str) -> None:
        """A cell is left: what it did wrong, or "" for nothing."""
        self.left.add(place)
        if fault:
            self.faults[place] = fault

    def end(self, why: str) -> None:
        """The notebook was ended; the first reason counts."""
        self.ended = self.ended or why


def rows_of(
    notebook: Notebook, verdicts: Mapping[str, tuple[str, str]], outcome: Outcome
) -> list[Row]:
    """A row for each exercise of the notebook's chapters; `verdicts` are (status, reason) by id."""
    rows = []
    for exercise in notebook.exercises:
        status, reason = verdicts.get(exercise.id) or _without_verdict(notebook, exercise, outcome)
        reason = "".join(each if each.isprintable() else " " for each in reason)  # for a terminal
        rows.append(Row(exercise.id, status, reason, Verdict(exercise, status, reason).line))
    return rows


def _without_verdict(notebook: Notebook, exercise: Exercise, outcome: Outcome) -> tuple[str, str]:
    places = notebook.cells_with(exercise.id)
    if not places:
        return "missing", f'no cell calls check("{exercise.id}", …)'
    for place in places:
        if place in outcome.faults:
            return "stopped", f"its cell {outcome.faults[place]}"
    if outcome.ended and not outcome.left.issuperset(places):
        return "stopped", f"the notebook was ended because {outcome.ended}"
    return "stopped", "its cell handed no answer to the course's own check"
