"""Horizontal bars with their words beside them: one for each value, or several for each name."""

import math
from collections.abc import Callable, Iterable, Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key, key_height
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

_TOP, _ROW, _BAR = 28.0, 25.0, 16.0
_MARK = 14.0  # the name of a mark
_SMALL, _SIZE = 12.0, 9.0  # a bar among several, and its words
Tell = Callable[[float], str]


def bars(
    amounts: Mapping[str, float],
    told: Mapping[str, str] | Tell,
    title: str = "",
    fill: str = style.MESSAGES,
    tens: bool = False,
    *,
    marks: Mapping[str, float] | None = None,
) -> Drawing:
    """A bar for each amount, and `told[name]` or `told(amount)` behind it.

    With `tens` equal lengths are factors. `marks` are lines across all bars, with their names.

    Raises ValueError without amounts, below 0, and for a 0 among `tens`.
    """
    marks = marks or {}
    sizes = [*amounts.values(), *marks.values()]
    if not amounts or min(sizes) < 0 or (tens and min(sizes) <= 0):
        raise ValueError("amounts must hold at least one, and none below 0: give {name: amount}")
    words = {
        name: told(amount) if callable(told) else told[name] for name, amount in amounts.items()
    }
    sentence = "; ".join([f"{name}: {text}" for name, text in words.items()] + [*marks])
    top = _TOP + _MARK * len(marks)
    bottom = top + _ROW * len(amounts)
    drawing = Drawing(bottom + (22 if tens else 4), f"{title}. {sentence}.")
    drawing.title(title)
    left, room = _between(amounts, words.values(), style.TEXT_PT)
    most, least = max(sizes), min(sizes)
    low = math.floor(math.log10(least)) - 1 if tens else 0
    span = math.log10(most) - low if tens else most or 1.0
    if tens:
        for power in range(low, math.floor(math.log10(most)) + 1):
            x = left + (power - low) / span * room
            drawing.line([(x, top), (x, bottom)], style.PALE)
        drawing.write(left, bottom + 14, "each line: ten times as much", 9, colour=style.GREY)

    def length_of(amount: float) -> float:
        return room * ((math.log10(amount) - low) if tens else amount) / span

    for row, (name, amount) in enumerate(amounts.items()):
        y, length = top + _ROW * row, length_of(amount)
        drawing.write(left - 8, y + 12, name, align="right")
        drawing.boxes([(left, y, max(0.8, length), _BAR)], fill)
        drawing.write(left + length + 6, y + 12, words[name])
    # The name of the largest mark is the lowest, so that no line crosses the name of another.
    for row, (name, amount) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        x, y = left + length_of(amount), _TOP + _MARK * row + 8
        drawing.line([(x, y + 3), (x, bottom - 6)], style.INK, dashed=True)
        drawing.write(min(x - 3, WIDTH_PT - width_pt(name, 9)), y, name, 9)
    return drawing


def grouped_bars(
    rows: Mapping[str, Mapping[str, float]], title: str, told: Tell, colours: Mapping[str, str]
) -> Drawing:
    """For each name one bar below another, from the same line: {name: {series: value}}.

    Raises ValueError without a bar, below 0, and for a series without a colour.
    """
    values = {one: value for series in rows.values() for one, value in series.items()}
    every = [value for series in rows.values() for value in series.values()]
    if not every or not all(rows.values()) or min(every) < 0:
        raise ValueError("rows lacks a bar, or has one below 0: give {name: {series: value}}")
    if missing := [one for one in values if one not in colours]:
        raise ValueError(f"colours lacks {missing[0]!r}: give a colour for each series")
    sentence = "; ".join(
        f"{name}: " + ", ".join(f"{one} {told(value)}" for one, value in series.items())
        for name, series in rows.items()
    )
    left, room = _between(rows, map(told, every), style.TEXT_PT)
    bottom = _TOP + sum(_SMALL * len(series) + 8 for series in rows.values())
    drawing = Drawing(bottom + key_height(colours, left) + 2, f"{title}. {sentence}.")
    drawing.title(title)
    y, scale = _TOP, room / (max(every) or 1.0)
    for name, series in rows.items():
        drawing.write(left - 8, y + _SMALL * len(series) / 2 + 3, name, align="right")
        for one, value in series.items():
            drawing.boxes([(left, y, max(value * scale, 0.8), _SMALL - 2)], colours[one])
            drawing.write(left + value * scale + 6, y + 9, told(value), size=_SIZE)
            y += _SMALL
        y += 8
    key(drawing, colours, left, bottom + 2)
    return drawing


def _between(names: Iterable[str], words: Iterable[str], size: float) -> tuple[float, float]:
    """Where bars begin beside their names, and how long they may be before their words."""
    left = max(width_pt(name, size) for name in names) + 14
    return left, WIDTH_PT - left - max(width_pt(text, size) for text in words) - 8
