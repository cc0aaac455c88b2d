"""The calls of several ranks by number, and the first number at which they differ."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted, width_pt

_LEFT, _TOP, _ROW, _MOST_RANKS, _MOST_CALLS = 62.0, 46.0, 30.0, 8, 10


def flight_records(calls: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """{"rank 0": ["4 × 4", "2 × 2"], …}: one row for each rank, one column for each call.

    Raises ValueError without a call, for more than 8 ranks or 10 calls, and for a call in so many
    words that they do not fit.
    """
    most = max(map(len, calls.values()), default=0)
    if not 0 < len(calls) <= _MOST_RANKS or not 0 < most <= _MOST_CALLS:
        raise ValueError(f"calls must hold 1 to {_MOST_RANKS} ranks and 1 to {_MOST_CALLS} calls")
    width = min(110.0, (WIDTH_PT - _LEFT) / most)
    longest = max((call for of in calls.values() for call in of), key=len)
    if width_pt(longest, 9) > width - 4:
        raise ValueError(f"the call {longest!r} does not fit into its box: use fewer words")
    columns = list(zip_longest(*calls.values()))
    parted = next((n for n, column in enumerate(columns, 1) if len(set(column)) > 1), None)
    drawing = Drawing(_TOP + _ROW * len(calls) + 4, _sentence(calls, parted))
    drawing.write(0, 13, title, style.TITLE_PT, bold=True)
    for number in range(1, most + 1):
        x = _LEFT + width * (number - 0.5) - 2
        drawing.write(x, _TOP - 6, str(number), 9, "center", bold=number == parted)
    for row, (name, its) in enumerate(calls.items()):
        y = _TOP + _ROW * row
        drawing.write(_LEFT - 8, y + 16, name, 9, "right")
        for place, call in enumerate(its):
            fill = _fill(place + 1, parted)
            x = _LEFT + width * place
            drawing.boxes([(x, y, width - 4, _ROW - 6)], fill)
            drawing.write(x + width / 2 - 2, y + 16, call, 9, "center", style.on(fill))
    return drawing


def _fill(number: int, parted: int | None) -> str:
    """Green before the first difference, a warning there, pale after it."""
    if parted is None or number < parted:
        return style.MESSAGES
    return style.WARNING if number == parted else style.PALE


def _sentence(calls: Mapping[str, Sequence[str]], parted: int | None) -> str:
    made = ", ".join(f"{name} made {counted(len(its), 'call')}" for name, its in calls.items())
    if parted is None:
        return f"{made}; all are alike."
    there = ", ".join(
        f"{name} {its[parted - 1] if len(its) >= parted else 'nothing'}"
        for name, its in calls.items()
    )
    return f"{made}; they differ first in call {parted}: {there}."
