"""Figures of chapter 12, beside those of the library."""

from collections.abc import Sequence

from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.lines import Axis, Curve, Frame, even, graph
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, arrow, counted
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.experts import ExpertLoad

# --- experts ------------------------------------------------------------------------------------
# How many choices fall on each expert, and which of them are dropped.


_NUMBERED, _NAMED = 16.0, 40.0  # room that a number and a name of a rank need


def expert_bars(load: ExpertLoad, title: str = "") -> Drawing:
    """One bar for each expert, in order of its number; ranks are bracketed below.

    What is above the capacity is dropped.
    """
    experts, own = len(load.load), len(load.load) // load.ranks
    lost = [taken - kept for taken, kept in zip(load.load, load.accepted, strict=True)]
    curves = {
        "accepted": Curve(
            list(enumerate(load.accepted)), fill=style.COMPUTING, told=f"{sum(load.accepted):,}"
        )
    }
    if load.dropped:
        told = f"{load.dropped:,} ({load.dropped_fraction:.1%})"
        curves["dropped"] = Curve(list(enumerate(lost)), fill=style.WARNING, told=told)
    busiest = f"the busiest gets {max(load.load):,}, {load.imbalance:.2f} times as many"
    levels = {f"mean {_short(load.mean)}; {busiest}": load.mean}
    if load.capacity < load.choices:
        levels[f"capacity {load.capacity:,}"] = load.capacity
    up = even([0, max(*load.load, *levels.values())], _short, "choices that fall on each expert")
    note = (
        f"{counted(experts, 'expert')}, {counted(own, 'expert')} on each of "
        f"{counted(load.ranks, 'rank')}, which hands over {format_bytes(load.dispatch_bytes)} in "
        "one all-to-all"
    )
    across = Axis((), ends=(0, experts))
    frame = graph(curves, title, across, up, levels=levels, notes=[note], gaps=True)
    _ranks(frame, load.ranks, experts, own)
    return frame.drawing


def _ranks(frame: Frame, ranks: int, experts: int, own: int) -> None:
    """A bracket and a name for each rank; numbers if there is room."""
    drawing, slot, y = frame.drawing, (frame.right - frame.left) / experts, frame.bottom + 14
    if slot >= _NUMBERED:
        numbers = [(frame.x(place + 0.5), y - 5, str(place)) for place in range(experts)]
        drawing.write_all(numbers, 8, "center", style.GREY)
    for rank in range(ranks):
        left, right = frame.x(rank * own) + 1, frame.x((rank + 1) * own) - 1
        drawing.line([(left, y - 2), (left, y + 1), (right, y + 1), (right, y - 2)])
    if own * slot >= _NAMED:
        names = [(frame.x((rank + 0.5) * own), y + 11, f"rank {rank}") for rank in range(ranks)]
        drawing.write_all(names, 9, "center")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


# --- routing ------------------------------------------------------------------------------------
# One token and its router: the probabilities, the chosen experts, and their weights.


_TOP, _PITCH, _HEIGHT = 36.0, 40.0, 26.0
_ROUTER, _EXPERT, _SUM = 96.0, 252.0, 446.0


def routing(probabilities: Sequence[float], weights: Sequence[float]) -> Drawing:
    """A token through its router to the chosen experts; `weights[i]` is 0 for one not chosen."""
    count = len(probabilities)
    drawing = Drawing(_TOP + _PITCH * count + 6, _sentence(probabilities, weights))
    middle = _TOP + _PITCH * count / 2 - 7
    for x, text in ((0.0, "token"), (_ROUTER - 2, "router"), (_EXPERT, "experts"), (_SUM, "sum")):
        drawing.write(x, 14, text, 9, colour=style.GREY)
    drawing.boxes([(0, middle - 13, 44, 26)], style.ACTIVATIONS)
    drawing.write(22, middle + 4, "x", align="center", colour=style.ON_FILL)
    arrow(drawing, (46, middle), (_ROUTER - 6, middle), width=1.5)
    drawing.boxes([(_ROUTER - 4, _TOP - 6, 92, _PITCH * count)], "none", edge=style.GREY)
    chosen = sorted((i for i in range(count) if weights[i]), key=lambda i: -probabilities[i])
    for expert, (probability, weight) in enumerate(zip(probabilities, weights, strict=True)):
        y = _TOP + _PITCH * expert
        wide = 46 * probability / max(probabilities)
        look = style.FORWARD if weight else style.IDLE
        drawing.boxes([(_ROUTER, y + 6, wide, 12)], look, edge=style.GREY)
        drawing.write(_ROUTER + wide + 4, y + 16, f"{probability:.2f}", 9)
        box = (_EXPERT, y, 92, _HEIGHT)
        drawing.boxes([box], style.WEIGHTS if weight else style.WHITE, edge=style.GREY)
        colour = style.ON_DARK_FILL if weight else style.GREY
        drawing.write(_EXPERT + 46, y + 17, f"MLP {expert}", 9, "center", colour)
        if weight:
            place = f"{chosen.index(expert) + 1}."
            arrow(drawing, (_ROUTER + 92, y + 13), (_EXPERT - 4, y + 13), width=1.5)
            drawing.write(_ROUTER + 96, y + 8, f"{place} choice", 9)
            arrow(drawing, (_EXPERT + 95, y + 13), (_SUM - 4, middle), width=1.5)
            beside = y + 4 if y + 13 <= middle else y + 31  # off the arrow's slope
            drawing.write(_EXPERT + 98, beside, f"× {weight:.2f}", 9)
    drawing.boxes([(_SUM, middle - 13, WIDTH_PT - _SUM - 1, 26)], style.ACTIVATIONS)
    drawing.write((_SUM + WIDTH_PT) / 2, middle + 4, "y", align="center", colour=style.ON_FILL)
    return drawing


def _sentence(probabilities: Sequence[float], weights: Sequence[float]) -> str:
    words = [
        f"expert {expert} has probability {probability:.2f}"
        + (f" and weight {weight:.2f}" if weight else " and is not used")
        for expert, (probability, weight) in enumerate(zip(probabilities, weights, strict=True))
    ]
    return f"One token: {', '.join(words)}."
