"""Horizontal bars with their words beside them: one for each value, or several for each name."""

import re
from collections.abc import Callable, Iterable, Mapping

from course_lib.figures.charts.number_line import Line
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key, key_height
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

_TOP, _ROW, _BAR = 28.0, 25.0, 16.0
_MARK, _DOT = 14.0, 9.0  # the name of a mark, and a value on a logarithmic axis
_SMALL, _SIZE = 12.0, 9.0  # a bar among several, and its words
Tell = Callable[[float], str]


def bars(
    amounts: Mapping[str, float],
    told: Mapping[str, str] | Tell,
    title: str,
    fill: str = style.MESSAGES,
    tens: bool = False,
    *,
    marks: Mapping[str, float] | None = None,
) -> Drawing:
    """A bar for each amount, and `told[name]` or `told(amount)` behind it.

    With `tens` the axis is logarithmic: squares instead of bars, since lengths would mean nothing.
    `marks` are lines across all rows, with their names.

    Raises ValueError without amounts, below 0, and among `tens` for a 0 or without a function.
    """
    marks = marks or {}
    sizes = [*amounts.values(), *marks.values()]
    if not amounts or min(sizes) < 0 or (tens and min(sizes) <= 0):
        raise ValueError("amounts must hold at least one, and none below 0: give {name: amount}")
    if tens and not callable(told):
        raise ValueError("told must be a function where the axis is in tens: its ticks need words")
    words = {
        name: told(amount) if callable(told) else told[name] for name, amount in amounts.items()
    }
    sentence = "; ".join([f"{name}: {text}" for name, text in words.items()] + [*marks])
    top = _TOP + _MARK * len(marks)
    bottom = top + _ROW * len(amounts)
    left, room = _between(amounts, words.values(), style.TEXT_PT)
    scale = "; on a logarithmic scale" if tens else ""
    drawing = Drawing(bottom + (18 if tens else 4), f"{title}. {sentence}{scale}.")
    drawing.title(title)
    place: Callable[[float], float]
    place, half = lambda amount: left + amount * room / (max(sizes) or 1.0), 0.0
    if tens and callable(told):
        line = Line.around(sizes, _short(told), (left, left + room), logarithmic=True)
        line.draw(drawing, top - 4, bottom)
        place, half = line.place, _DOT / 2
    for row, (name, amount) in enumerate(amounts.items()):
        y, x = top + _ROW * row, place(amount)
        drawing.write(left - 8 - half, y + 12, name, align="right")
        if tens:
            after = x + half + 12 + width_pt(words[name], style.TEXT_PT)
            ways = [(left, x - half), (after, max(after, left + room))]
            drawing.lines([[(a, y + 8), (b, y + 8)] for a, b in ways], style.PALE)
            drawing.boxes([(x - half, y + 8 - half, _DOT, _DOT)], fill)
        else:
            drawing.boxes([(left, y, max(0.8, x - left), _BAR)], fill)
        drawing.write(x + half + 6, y + 12, words[name])
    # The name of the largest mark is the lowest, so that no line crosses the name of another.
    for row, (name, amount) in enumerate(sorted(marks.items(), key=lambda mark: mark[1])):
        x, y = place(amount), _TOP + _MARK * row + 8
        drawing.line([(x, y + 3), (x, bottom - 6)], style.INK, dashed=True)
        drawing.write(min(x - 3, WIDTH_PT - width_pt(name, 9)), y, name, 9)
    return drawing


def _short(told: Tell) -> Tell:
    """The same words without decimals that are 0, for the axis."""
    return lambda value: re.sub(r"\.0+\b", "", told(value))


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
        f"{name}: " + ", ".join(f"{one}: {told(value)}" for one, value in series.items())
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
