"""The stepper of chapter 14: pulls and pushes at a parameter server, and how late they are."""

from course_lib import figures
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import choice, listed
from course_lib.panels.panel import View
from course_lib.panels.stepper import Stepper, Story
from course_lib.theory.network.served_steps import (
    PULL,
    PUSH,
    UPDATE,
    WAIT,
    ServedEvent,
    ServedSteps,
    served_steps,
)

UNTIL_S = 0.16
_BOUNDS = {"together": 0, "at most 1 ahead": 1, "at most 2 ahead": 2, "nobody waits": None}


def served(rule: str = "nobody waits", slow_ms: int = 125) -> Stepper:
    """Three trainers and a server; what is shown is a `ServedSteps` and a step of it.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "rule": choice("who waits", rule, list(_BOUNDS)),
        "slow_ms": listed("trainer 2 takes", slow_ms, {str(ms): ms for ms in (30, 60, 125)}, "ms"),
    }
    return Stepper(controls, _story)


def _story(rule: str, slow_ms: int) -> Story:
    compute_s = (0.030, 0.036, slow_ms / 1000)
    together = rule == "together"
    result = served_steps(compute_s, UNTIL_S, None if together else _BOUNDS[rule], together)
    return Story(len(result.events), lambda step: _view(result, step, together))


def _view(result: ServedSteps, step: int, together: bool) -> View:
    past = result.events[: step + 1]
    late = [event.late for event in past if event.what == PUSH]
    mean = f", {sum(late) / len(late):.1f} updates late on average" if any(late) else ""
    rows = (
        ("gradients", f"{len(late)} so far{mean}"),
        ("the table", counted(past[-1].version, "update")),
    )
    return View(
        (result, step),
        rows,
        lambda: figures.served_step(result, step),
        _said(result.events[step], together),
    )


def _said(event: ServedEvent, together: bool) -> str:
    name = f"Trainer {event.trainer}"
    if event.what == PULL:
        return f"{name} pulls rows of version {event.version} and begins to compute."
    if event.what == WAIT:
        return f"{name} asks for rows, and must wait: it is too far ahead of the slowest."
    if event.what == UPDATE:
        return f"All gradients are in: their sum makes version {event.version}."
    if together:
        return f"{name} pushes its gradient; the server keeps it until all are in."
    if event.late:
        updates = counted(event.late, "update")
        return f"{name} pushes a gradient of rows that have seen {updates} since its pull."
    return f"{name} pushes its gradient, which is on time: nobody came in between."
