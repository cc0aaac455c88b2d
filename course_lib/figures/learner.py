"""A learner's predictions, guesses and parts, compared with the outcomes and the course."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from course_lib.figures.engines.bars import grouped_bars
from course_lib.figures.engines.lines import Axis, Frame, Tell, even, fitting, powers
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Box, Drawing, key
from course_lib.theory.inputs.units import format_number

# --- A prediction, the theory and a measurement on one scale --------------------------------------

COLOURS = {"you": style.YOU, "theory": style.THEORY, "measured": style.MEASURED}
_NAMES, _RIGHT, _ROW, _MARK = 76.0, 515.0, 20.0, 9.0
_CHARACTER = 6.5  # width of a digit at 10 points
_LOG_FROM = 20  # ratio of largest to smallest value above which the scale is logarithmic


def number_line(values: Mapping[str, float], words: Tell) -> Drawing:
    """Draw a row for each of the `values` "you", "theory" and "measured" that are present.

    `words` formats a value with its unit. The scale is linear from 0, or logarithmic if all are
    above 0 and far apart.
    """
    sizes = list(values.values())
    logarithmic = min(sizes) > 0 and max(sizes) > _LOG_FROM * min(sizes)
    column = _NAMES + _CHARACTER * max(len(words(size)) for size in sizes)
    left, bottom = column + 20, _ROW * len(values)
    make, shown = (powers, sizes) if logarithmic else (even, [*sizes, 0.0])
    axis = fitting(make, shown, words, _RIGHT - left)
    sentence = "; ".join(f"{name}: {words(value)}" for name, value in values.items())
    scale = "logarithmic" if logarithmic else "linear"
    drawing = Drawing(bottom + 18, f"{sentence}; on a {scale} scale.")
    frame = Frame(drawing, axis, axis, left, 2, _RIGHT, bottom)
    frame.ticks_across()
    for row, (name, value) in enumerate(values.items()):
        x, y = frame.x(value), _ROW * (row + 0.5)
        drawing.write(0, y + 4, name, bold=True)
        drawing.write(column, y + 4, words(value), align="right")
        if name == "you" and abs(frame.x(sizes[-1]) - x) > _MARK:  # the gap to the last value
            last = frame.x(sizes[-1])
            drawing.line([(x, y), (last, y)], style.YOU, width=3)
            drawing.line([(last, y - 7), (last, y + 7)], style.YOU, width=1.5)
        drawing.boxes([(x - _MARK / 2, y - _MARK / 2, _MARK, _MARK)], COLOURS[name])
    return drawing


# --- built ----------------------------------------------------------------------------------------
# What a learner has built: for each part its owner, lines, and speed relative to the course's.


def built(parts: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw two bars for each part of `checking.races.report()["parts"]`: lines of code.

    Where the report has timings, the label shows your time over the course's.
    """
    yours = sum(bool(part["file"]) for part in parts)
    rows, words = {}, {}
    for part in parts:
        name = f"{part['build']} {part['title']}"
        rows[name] = {"yours": part["lines"]} if part["file"] else {}
        rows[name] |= {"the course's": part["lines_of_the_course"]}
        if "times_the_course" in part:
            speed = f"{format_number(part['times_the_course'], 2)} times the course's time"
            words[name, "yours"] = f"{part['lines']} lines, {speed}"
    title = f"Your parallel library: {yours} of {len(parts)} parts are yours"
    looks = {"yours": (style.SKY, None), "the course's": (style.PALE, None)}
    return grouped_bars(rows, title, "{:,} lines".format, looks, words=words)


# --- Guesses relative to the outcomes: a row for each topic, a square for each guess --------------

_LEFT, _WIDTH, _TOP, _SQUARE = 74.0, 300.0, 62.0, 7.0
_LEAST_ROW, _MOST_STACKED = 34.0, 64.0
_BINS = 40  # over the whole width; squares in one bin are stacked
_INTUITION_RIGHT = 0.01  # relative tolerance of a right guess
_LOOKS = {"too low": style.SKY, "right": style.GREEN, "too high": style.ORANGE}
_MARKS = {0.01: "1/100", 0.1: "1/10", 1: "1", 10: "10", 100: "100"}
_AXIS = Axis(list(_MARKS), _MARKS.__getitem__, "your number over what came (logarithmic)", log=True)

Factors = Mapping[str, Sequence[float]]


def guesses(factors: Factors, title: str = "Where my intuition was off") -> Drawing:
    """Draw `factors`, your number over the outcome, by topic; all above 0.

    Squares beyond 1/100 or 100 are drawn at the edge.
    """
    stacks = {topic: _stack(its) for topic, its in factors.items()}
    bottom = _TOP + sum(high for _, high in stacks.values())
    drawing = Drawing(bottom + 34, sentence(factors))
    drawing.title(title)
    key(drawing, _LOOKS, _LEFT, 24)
    drawing.line([(_LEFT + 250, 22), (_LEFT + 250, 36)], width=2)
    drawing.write(_LEFT + 258, 33, "median of the topic", 9)
    frame = Frame(drawing, _AXIS, _AXIS, _LEFT, _TOP - 8, _LEFT + _WIDTH, bottom)
    frame.ticks_across()
    y = _TOP
    for topic, its in factors.items():
        step, high = stacks[topic]
        y += high
        drawing.line([(_LEFT, y), (frame.right, y)], style.PALE)
        drawing.write(0, y - 8, topic, bold=True)
        boxes, stacked = dict[str, list[Box]](), Counter[int]()
        for factor in sorted(its):
            at = _bin(factor)
            left, top = _LEFT + _WIDTH * at / _BINS - _SQUARE / 2, y - _SQUARE - step * stacked[at]
            boxes.setdefault(_look(factor), []).append((left, top, _SQUARE, _SQUARE))
            stacked[at] += 1
        for look in boxes:
            drawing.boxes(boxes[look], _LOOKS[look])
        x = frame.x(statistics.median(its))
        drawing.line([(x, y + 4), (x, y - 20)], width=2)
        drawing.write(frame.right + 12, y - 14, _middle(its))
        drawing.write(frame.right + 12, y - 2, _guesses(its), colour=style.GREY)
    return drawing


def sentence(factors: Factors) -> str:
    """A description of each topic: number of guesses, right ones and median."""
    words = [f"{topic}: {_guesses(its)}, {_middle(its)}" for topic, its in factors.items()]
    return f"Your number over what came. {'; '.join(words)}."


def _stack(factors: Sequence[float]) -> tuple[float, float]:
    """(distance between stacked squares, height of the row); tall stacks are compressed."""
    most = max(Counter(map(_bin, factors)).values())
    step = min(_SQUARE + 1, _MOST_STACKED / most)
    return step, max(_LEAST_ROW, step * most + 12)


def _bin(factor: float) -> int:
    """The bin of a factor, clamped to 1/100 … 100."""
    return round(_BINS * min(max(_AXIS.part(factor), 0), 1))


def _look(factor: float) -> str:
    if abs(factor - 1) <= _INTUITION_RIGHT:
        return "right"
    return "too low" if factor < 1 else "too high"


def _middle(factors: Sequence[float]) -> str:
    """The median and its direction: "median 2.3 × too low"."""
    middle = statistics.median(factors)
    if _look(middle) == "right":
        return "mostly right" if 2 * _right(factors) > len(factors) else "low and high alike"
    factor = max(middle, 1 / middle)
    text = f"{format_number(factor)}" if factor < 1000 else ">999"
    return f"median {text} × {_look(middle)}"


def _guesses(factors: Sequence[float]) -> str:
    return f"{len(factors)} guess{'es' * (len(factors) != 1)}, {_right(factors)} right"


def _right(factors: Sequence[float]) -> int:
    return sum(_look(factor) == "right" for factor in factors)
