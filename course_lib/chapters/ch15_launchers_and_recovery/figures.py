"""Figures of chapter 15, in addition to those of the library."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.chapters.ch15_launchers_and_recovery.recovery import Saving
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.bars import bars
from course_lib.figures.engines.lanes import lanes
from course_lib.figures.engines.lines import Axis, Curve, even, graph
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, Point
from course_lib.theory.inputs.units import format_duration, format_number

# --- recovery -----------------------------------------------------------------------------------
# How a job that lost a node spent its time.


# Each phase: its label, first event, last event, and look.
_PHASES = (
    ("waits in the queue", "submitted", "started", "waits"),
    ("starts torch", "started", "training", "starts"),
    ("trains", "training", "killed", "training"),
    ("hangs: nobody misses the node yet", "killed", "requeued", "hangs"),
    ("waits in the queue again", "requeued", "restarted", "waits"),
    ("starts torch again", "restarted", "resumed", "starts"),
    ("trains, from the checkpoint on", "resumed", "done", "training"),
)


def requeue_timeline(times: Mapping[str, float]) -> Drawing:
    """A timeline with one row per phase, on a common scale of seconds.

    `times` has the seconds since submission of the events submitted, started, training, killed,
    requeued, restarted, resumed and done, as `cluster.requeue().times` does. Raises ValueError for
    a phase that ends before it begins.
    """
    rows = {
        f"{words}, {times[end] - times[start]:.1f} s": [(what, times[start], times[end])]
        for words, start, end, what in _PHASES
    }
    return lanes(rows, f"{times['done']:.1f} s with the loss of a node")


# --- saving -------------------------------------------------------------------------------------
# The cost of failures and saves as a function of the checkpoint interval.


_TICKS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 14400: "4 h", 86400: "1 d"}
_SAMPLES, _LONGEST = 90, 86_400.0  # seconds between two saves, from 1
_LOOKS = {"saving": style.BLUE, "work done again": style.GREEN, "restarting": style.PINK}


def wasted_time(
    plan: Saving, title: str = "", measured: Mapping[str, Sequence[Point]] | None = None
) -> Drawing:
    """Waste and its three parts against the checkpoint interval; marks the best and the plan's.

    `measured`: {"simulated": [(seconds between saves, waste), …]}, drawn as dots.
    """
    best, along = replace(plan, interval_s=plan.best_interval_s), _along(plan)
    dots = [(at.interval_s, at.waste) for at in (plan, best)]
    every = [(at.interval_s, at.waste) for at in along]
    note = f"at yours {_percent(plan.waste)}"
    curves = {"in all": Curve(every, style.INK, note, dots=dots, width=2.5)}
    for name, part in plan.parts.items():
        points = [(at.interval_s, at.parts[name]) for at in along]
        note = f"at yours {_percent(part)}"
        curves[name] = Curve(points, _LOOKS[name], note, dashed=True, width=1.5)
    curves |= {
        name: Curve((), style.WHITE, dots=points) for name, points in (measured or {}).items()
    }
    marks = {
        f"{name}: {format_duration(at.interval_s)}, {_percent(at.waste)}": at.interval_s
        for name, at in (("yours", plan), ("best", best))
    }
    up = even([0, 2 * best.waste], _tick, "time lost, in % of the time spent on new work")
    across = Axis(
        list(_TICKS), lambda tick: _TICKS[round(tick)], "work between two saves", log=True
    )
    drawing = graph(curves, title or "What failures cost", across, up, marks=marks).drawing
    drawing.sentence = (
        f"A failure every {format_duration(plan.mtbf_s)}, {format_duration(plan.save_s)} for a "
        f"save, {format_duration(plan.restart_s)} for a restart. {drawing.sentence}"
    )
    return drawing


def _along(plan: Saving) -> list[Saving]:
    """The plan at intervals from 1 s to a day, up to the first one that makes no progress."""
    plans = []
    for step in range(_SAMPLES + 1):
        try:
            plans.append(replace(plan, interval_s=_LONGEST ** (step / _SAMPLES)))
        except ValueError:  # practically no progress
            break
    return plans


def _tick(waste: float) -> str:
    return f"{format_number(100 * waste, 3 if waste >= 0.01 else 2)} %"


def _percent(part: float) -> str:
    return f"{part:.1%}" if part < 10 else f"{part:,.0%}"


# --- search -------------------------------------------------------------------------------------
# A search for the largest batch that fits, by doubling and then bisection.


def tried_batches(tried: Sequence[int], largest: int) -> Drawing:
    """A horizontal bar per try, from the top, as long as its batch; batches that fit are green."""
    tries = {f"try {number}": batch for number, batch in enumerate(tried, 1)}
    looks = {False: (style.WARNING, "/"), True: (style.GREEN, None)}
    return bars(
        tries,
        {name: f"{it}{' (too large)' * (it > largest)}" for name, it in tries.items()},
        "batch that is tried",
        {name: looks[batch <= largest] for name, batch in tries.items()},
        marks={f"largest that fits: {largest}": largest},
    )
