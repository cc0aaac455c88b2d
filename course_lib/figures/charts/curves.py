"""Loss against update number."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from operator import sub

from matplotlib.ticker import MaxNLocator

from course_lib.figures.charts.lines import short
from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_number

_SEEN = 0.005  # of the height: less than half of a line's width apart


def loss(curves: Mapping[str, Sequence[float]], what: str = "loss") -> Sheet:
    """One line per name, told apart by colour and dashes; update 1 is the first value.

    Of curves that the eye can't tell apart one is drawn, and for the others the key has the largest
    difference. `what` the values are: the loss, unless it is said.
    Raises ValueError when there is no curve or one without values.
    """
    if not curves or not all(len(values) for values in curves.values()):
        raise ValueError("curves must hold at least one value each: give {name: [loss, …]}")
    hidden = _hidden(curves)
    sheet = Sheet(240, _sentence(curves, what, hidden))
    axes = sheet.add_axes((0.11, 0.17, 0.86, 0.78))
    looks = cycle(style.LINES)
    for name, values in curves.items():
        if name in hidden:
            axes.plot([], [], label=hidden[name], linestyle="none")
            continue
        colour, dashes = next(looks)
        axes.plot(
            range(1, len(values) + 1),
            values,
            label=name,
            linewidth=2,
            color=colour,
            linestyle=dashes,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("update", fontsize=style.TEXT_PT)
    axes.set_ylabel(what, fontsize=style.TEXT_PT)
    axes.tick_params(labelsize=style.TEXT_PT)
    axes.grid(color=style.PALE)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=style.TEXT_PT, frameon=False)
    return sheet


def _hidden(curves: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """The curves that would lie on one before them, and how far they are from it at most."""
    every = [value for values in curves.values() for value in values]
    seen = _SEEN * (max(every) - min(every))
    drawn: dict[str, Sequence[float]] = {}
    hidden: dict[str, str] = {}
    for name, values in curves.items():
        for before, others in drawn.items():
            alike = len(others) == len(values)
            apart = max(map(abs, map(sub, values, others))) if alike else math.inf
            if apart <= seen:
                far = f"at most {short(apart)} away from" if apart else "the same numbers as"
                hidden[name] = f"{name}: {far} {before}"
                break
        else:
            drawn[name] = values
    return hidden


def _sentence(curves: Mapping[str, Sequence[float]], what: str, hidden: Mapping[str, str]) -> str:
    parts = [
        f"{name}: {what} {format_number(values[0])} at update 1, {format_number(values[-1])} "
        f"at update {len(values)}"
        for name, values in curves.items()
    ]
    return "; ".join([*parts, *hidden.values()]) + "."
