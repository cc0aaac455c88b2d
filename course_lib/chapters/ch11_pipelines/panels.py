"""Panels of chapter 11."""

from course_lib import figures
from course_lib.panels.controls import choice, whole
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.units import format_number
from course_lib.theory.pipelines.bubble import PassTimes, bubble_fraction
from course_lib.theory.pipelines.simulation import Timeline, timeline

SCHEDULE_NAMES = {
    "naive": "naive",
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "interleaved": "interleaved",
    "ZB1P": "zb1p",
    "ZB-V": "zbv",
    "DualPipe": "dualpipe",
}
_FORMULA = ("gpipe", "1f1b", "interleaved")  # idle for p-1 passes, forward and backward
_BACKWARD = {
    "as long as forward": 1.0,
    "1.5 × forward": 1.5,
    "2 × forward": 2.0,
    "3 × forward": 3.0,
}
_TRANSFER = {"free": 0.0, "0.1 × forward": 0.1, "0.25 × forward": 0.25, "1 × forward": 1.0}
_LAST = {"like the others": 1.0, "1.25 × as long": 1.25, "1.5 × as long": 1.5, "2 × as long": 2.0}


@panel
def pipeline(
    schedule: str = choice("schedule", "1f1b", SCHEDULE_NAMES),
    backward: float = choice("backward", 2.0, _BACKWARD),
    stages: int = whole("stages", 4, 2, 16),
    micro_batches: int = whole("micro-batches", 8, 1, 32),
    virtual_stages: int = whole("virtual stages", 1, 1, 4),
    transfer: float = choice("transfer", 0.0, _TRANSFER),
    last_stage: float = choice("last stage", 1.0, _LAST),
) -> View:
    """Controls for `timeline`; its `Timeline` is the panel's result.

    `backward` and `transfer` (to a neighbour) are in forward passes of a stage; the last stage
    takes `last_stage` times as long. Raises ValueError for starting values that are not offered or
    do not fit together.
    """
    forward = (1.0,) * (stages - 1) + (last_stage,)
    times = PassTimes(forward, tuple(backward * each for each in forward), transfer=transfer)
    result = timeline(schedule, stages, micro_batches, virtual_stages, times=times)
    held = ", ".join(format_number(result.in_flight(stage)) for stage in range(stages))
    busy = result.makespan - result.bubble_time
    rows = (
        (
            "bubble",
            f"{result.bubble_fraction:.1%} of the whole time, "
            f"{result.bubble_over_ideal:.1%} of the ideal time",
        ),
        (
            "makespan",
            f"{format_number(result.makespan, 5)} forward passes of a stage: "
            f"{format_number(busy, 5)} busy + {format_number(result.bubble_time, 5)} idle",
        ),
        ("micro-batches in flight", f"{held}, from the first stage to the last"),
        ("(p-1) / (vm + p-1)", _formula(result, transfer == 0 and last_stage == 1)),
    )
    name = next(name for name, value in SCHEDULE_NAMES.items() if value == schedule)
    title = f"{name}, bubble {result.bubble_fraction:.1%}"
    return View(result, rows, lambda: figures.timeline({title: result.tasks}, seconds=False))


def _formula(result: Timeline, even: bool) -> str:
    """The bubble that the closed form gives for this pipeline."""
    plan = result.schedule
    if plan.name not in _FORMULA:
        return "is not the formula of this schedule"
    part = bubble_fraction(plan.stages, plan.micro_batches, plan.chunks)
    return f"{part:.1%}" + ("" if even else ", for equal stages and free transfers only")
