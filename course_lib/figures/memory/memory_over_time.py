"""What is in the memory at each moment of a step, stacked by what it is for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.inputs.units import GB, KB, MB, format_bytes

LEFT, _RIGHT, _HEIGHT = 44.0, WIDTH_PT - 8.0, 150.0
PANEL_PT = _HEIGHT + 72
_COLUMNS = 90  # more cannot be told apart
_MOST_PHASES = 36  # with a place of their own
_LETTER_PT = 6.1  # the widest average of a line of text
_LINE_PT = 11.5
_TICKS = 4
# From the bottom: what is always there, what grows by mistake, what comes and goes.
_LOOKS = {
    "framework overhead": (style.GREY, style.ON_DARK_FILL),
    "weights": (style.WEIGHTS, style.ON_DARK_FILL),
    "optimizer": (style.STATES, style.ON_FILL),
    "left over": (style.WARNING, style.ON_FILL),
    "leak": (style.WARNING, style.ON_FILL),
    "not known": (style.IDLE, style.INK),
    "gradients": (style.GRADIENTS, style.ON_FILL),
    "inputs and labels": (style.PALE, style.INK),
    "intermediate results": (style.ACTIVATIONS, style.ON_FILL),
    "temporary buffers": (style.TEMPORARY, style.ON_FILL),
}
_PHASES = {"forward": style.FORWARD, "backward": style.BACKWARD, "update": style.UPDATE}
# Parts of the width, so that the same phase has the same place in every panel.
_WIDE = {"forward": 4.0, "backward": 5.0, "update": 2.0}


class MemoryCurve(Protocol):
    """Bytes by category at each moment, predicted or measured; every list has one length."""

    @property
    def phases(self) -> Sequence[str]: ...
    @property
    def moments(self) -> Sequence[str]: ...
    @property
    def sizes(self) -> Mapping[str, Sequence[int]]: ...


def memory_over_time(runs: Mapping[str, MemoryCurve], title: str = "") -> Drawing:
    """One panel for each run, all on one scale; a phase has the same place in all of them.

    Within a phase the moments follow each other at equal distances: not to scale in time. Raises
    ValueError when there is no run, or one without bytes.
    """
    panels = [Panel.of(name, run) for name, run in runs.items()]
    if not panels or not all(it.peak_bytes for it in panels):
        raise ValueError("runs must hold at least one byte each: give {name: timeline, …}")
    most = max(panel.peak_bytes for panel in panels)
    head = 22 if title else 0
    sentences = "; ".join(panel.sentence() for panel in panels)
    drawing = Drawing(
        head + PANEL_PT * len(panels), f"{title}: {sentences}." if title else f"{sentences}."
    )
    drawing.title(title)
    for number, panel in enumerate(panels):
        panel.draw(drawing, head + number * PANEL_PT, most)
    return drawing


@dataclass(frozen=True)
class Column:
    """One place on the x axis: from `left` to `right`, and the bytes from the bottom up."""

    left: float
    right: float
    moment: int
    stack: tuple[int, ...]  # the top of each category


@dataclass(frozen=True)
class Panel:
    """One run, laid out."""

    name: str
    run: MemoryCurve
    shown: tuple[str, ...]  # categories from the bottom
    totals: tuple[int, ...]

    @classmethod
    def of(cls, name: str, run: MemoryCurve) -> "Panel":
        """The categories that hold anything, in the order of the stack."""
        shown = tuple(it for it in _LOOKS if any(run.sizes.get(it, ())))
        return cls(name, run, shown, tuple(map(sum, zip(*run.sizes.values(), strict=True))))

    @property
    def peak_bytes(self) -> int:
        """The most at any moment."""
        return max(self.totals, default=0)

    @property
    def peak(self) -> int:
        """The number of the moment that needs most."""
        return self.totals.index(self.peak_bytes)

    def where(self, moment: int) -> str:
        """A moment in words."""
        phase, what = self.run.phases[moment], self.run.moments[moment].strip("_")
        return f"{phase}, {what}" if what else phase

    def sentence(self) -> str:
        """Peak, its moment, and what is there then."""
        parts = [
            f"{name} {format_bytes(self.run.sizes[name][self.peak])}"
            for name in self.shown
            if self.run.sizes[name][self.peak]
        ]
        return (
            f"{self.name}: at most {format_bytes(self.peak_bytes)}, in {self.where(self.peak)}, "
            f"namely {', '.join(parts)}"
        )

    def columns(self) -> list[Column]:
        """The moments side by side; of many in one place the one that holds most."""
        spans = phase_spans(self.run.phases)
        wide = (_RIGHT - LEFT) / sum(_WIDE.get(phase, 1.0) for phase, _, _ in spans)
        found: list[Column] = []
        x = LEFT
        for phase, start, stop in spans:
            width = wide * _WIDE.get(phase, 1.0)
            count = min(stop - start, max(1, round(_COLUMNS * width / (_RIGHT - LEFT))))
            edges = [start + (stop - start) * place // count for place in range(count + 1)]
            for place in range(count):
                most = max(range(edges[place], edges[place + 1]), key=self.totals.__getitem__)
                left, right = x + width * place / count, x + width * (place + 1) / count
                found.append(Column(left, right, most, self._stack(most)))
            x += width
        return found

    def _stack(self, moment: int) -> tuple[int, ...]:
        top, stack = 0, []
        for name in self.shown:
            top += self.run.sizes[name][moment]
            stack.append(top)
        return tuple(stack)

    def draw(self, drawing: Drawing, top: float, most_bytes: int, until: int | None = None) -> None:
        """Axes, areas, labels, phases and peak; with `until` only the areas up to that moment."""
        scale = _Scale(top + 20, most_bytes)
        columns = self.columns()
        drawn = [it for it in columns if until is None or it.moment <= until]
        _axes(drawing, scale)
        _areas(drawing, scale, self.shown, drawn)
        if until is not None:
            _outline(drawing, scale, columns)
            x = drawn[-1].right
            drawing.line([(x, scale.top - 4), (x, scale.top + _HEIGHT)], style.INK, 1.6)
            named = list(self.shown)  # a name in an area would move from step to step
        else:
            named = _labels(drawing, scale, self.shown, drawn)
        _phases(drawing, scale, self.run.phases)
        self._peak(drawing, scale, columns)
        _key(drawing, scale, named)

    def _peak(self, drawing: Drawing, scale: "_Scale", columns: Sequence[Column]) -> None:
        column = next(it for it in columns if self.totals[it.moment] == self.peak_bytes)
        x, y = (column.left + column.right) / 2, scale.y(self.peak_bytes)
        drawing.line([(LEFT, y), (_RIGHT, y)], style.WARNING, dashed=True)
        drawing.boxes([(x - 3, y - 3, 6, 6)], style.WARNING)
        drawing.write(LEFT, scale.top - 8, self.name, bold=True)
        words = f"peak {format_bytes(self.peak_bytes)}: {self.where(self.peak)}"
        drawing.write(_RIGHT, scale.top - 8, words, align="right", bold=True)


def phase_spans(phases: Sequence[str]) -> list[tuple[str, int, int]]:
    """Stretches of moments with one phase: (phase, first moment, the one after its last).

    Of very many it makes one, whose phase says how many there are.
    """
    found, start = [], 0
    for phase, group in groupby(phases):
        stop = start + len(list(group))
        found.append((phase, start, stop))
        start = stop
    if len(found) > _MOST_PHASES:
        return [(f"{len(found):,} phases", 0, start)]
    return found


class _Scale:
    """Where a number of bytes lies."""

    def __init__(self, top: float, most_bytes: int) -> None:
        self.top = top
        rough = 1.02 * most_bytes / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        self.tick = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough)
        self.ticks = math.ceil(1.02 * most_bytes / self.tick)
        units = ((GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B"))
        self.unit, self.unit_name = next(it for it in units if most_bytes >= it[0])

    def y(self, size_bytes: float) -> float:
        return self.top + _HEIGHT * (1 - size_bytes / (self.tick * self.ticks))


def _axes(drawing: Drawing, scale: _Scale) -> None:
    for number in range(scale.ticks + 1):
        y = scale.y(number * scale.tick)
        drawing.line([(LEFT, y), (_RIGHT, y)], style.PALE)
        text = f"{number * scale.tick / scale.unit:g}"
        text += f" {scale.unit_name}" if number == scale.ticks else ""
        drawing.write(LEFT - 4, y + 4, text, size=9, align="right", colour=style.GREY)


def _areas(
    drawing: Drawing, scale: _Scale, shown: Sequence[str], columns: Sequence[Column]
) -> None:
    bottom = scale.y(0)
    for level in reversed(range(len(shown))):  # the highest first, the lower ones cover it
        points = [(columns[0].left, bottom)]
        for column in columns:
            y = scale.y(column.stack[level])
            if y != points[-1][1]:
                points += [(column.left, points[-1][1]), (column.left, y)]
        points += [(columns[-1].right, points[-1][1]), (columns[-1].right, bottom)]
        drawing.area(points, _LOOKS[shown[level]][0])


def _outline(drawing: Drawing, scale: _Scale, columns: Sequence[Column]) -> None:
    points = [
        (x, scale.y(column.stack[-1])) for column in columns for x in (column.left, column.right)
    ]
    drawing.line(points, style.GREY)


def _labels(
    drawing: Drawing, scale: _Scale, shown: Sequence[str], columns: Sequence[Column]
) -> list[str]:
    """Write each category's name where its area has most room; those without room are returned."""
    thin = []
    for level, name in enumerate(shown):
        room, x, y = 0.0, 0.0, 0.0
        for first, column in enumerate(columns):
            end = column.left + _LETTER_PT * len(name)
            window = [it for it in columns[first:] if it.left < end]
            if window[-1].right < end:
                break
            low = scale.y(max(it.stack[level - 1] for it in window) if level else 0)
            high = scale.y(min(it.stack[level] for it in window))
            if low - high > room:
                room, x, y = low - high, column.left, (low + high) / 2
        if room >= _LINE_PT:
            middle = x + _LETTER_PT * len(name) / 2
            drawing.write(middle, y + 3.5, name, align="center", colour=_LOOKS[name][1])
        else:
            thin.append(name)
    return thin


def _key(drawing: Drawing, scale: _Scale, names: Sequence[str]) -> None:
    """What has no name in its area, with its colour, in a line below."""
    x, y = LEFT, scale.top + _HEIGHT + 23
    for name in names:
        width = 13 + 0.9 * _LETTER_PT * len(name)
        if x + width > WIDTH_PT:
            x, y = LEFT, y + 13
        drawing.boxes([(x, y, 9, 9)], _LOOKS[name][0])
        drawing.write(x + 13, y + 8, name, size=9)
        x += width + 32  # so that no word stands between two colours


def _phases(drawing: Drawing, scale: _Scale, phases: Sequence[str]) -> None:
    """A strip under the axis: which phase it is."""
    spans = phase_spans(phases)
    wide = (_RIGHT - LEFT) / sum(_WIDE.get(phase, 1.0) for phase, _, _ in spans)
    x, y = LEFT, scale.top + _HEIGHT + 4
    for phase, _, _ in spans:
        width = wide * _WIDE.get(phase, 1.0)
        drawing.boxes([(x, y, width, 13)], _PHASES.get(phase, style.IDLE))
        if len(phase) * _LETTER_PT < width:
            ink = style.ON_FILL if phase in _PHASES else style.INK
            drawing.write(x + width / 2, y + 10, phase, align="center", colour=ink)
        x += width
