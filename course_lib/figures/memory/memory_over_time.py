"""What is in the memory at each moment of a step, stacked by what it is for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from course_lib.figures.engines.axis import Axis, even
from course_lib.figures.engines.lines import Frame
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.key import key
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.theory.inputs.units import GB, KB, MB, format_bytes

LEFT, _RIGHT, _HEIGHT = 44.0, WIDTH_PT - 8.0, 150.0
PANEL_PT = _HEIGHT + 72
_COLUMNS = 90  # more cannot be told apart
_MOST_PHASES = 36  # with a place of their own
_LETTER_PT = 6.1  # the widest average of a line of text
_LINE_PT = 11.5
# From the bottom: what is always there, what grows by mistake, what comes and goes.
_LOOKS = {
    "framework overhead": style.GREY,
    "weights": style.WEIGHTS,
    "optimizer": style.STATES,
    "left over": style.WARNING,
    "leak": style.WARNING,
    "not known": style.IDLE,
    "gradients": style.GRADIENTS,
    "inputs and labels": style.PALE,
    "intermediate results": style.ACTIVATIONS,
    "temporary buffers": style.TEMPORARY,
}
_UNITS = ((GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B"))
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
        unit, name = next(it for it in _UNITS if most_bytes >= it[0])
        ticks = even([0, 1.02 * most_bytes], most=5).ticks
        up = Axis(ticks, lambda it: f"{it / unit:g}{f' {name}' * (it == ticks[-1])}")
        across = Axis((), ends=(LEFT, _RIGHT))
        frame = Frame(drawing, across, up, LEFT, top + 20, _RIGHT, top + 20 + _HEIGHT)
        columns = self.columns()
        drawn = [it for it in columns if until is None or it.moment <= until]
        frame.axes()
        named = list(self.shown)
        _areas(frame, self.shown, drawn)
        if until is not None:  # no name in an area, which would move from step to step
            tops = [(x, frame.y(it.stack[-1])) for it in columns for x in (it.left, it.right)]
            drawing.line(tops, style.GREY)
            x = drawn[-1].right
            drawing.line([(x, frame.top - 4), (x, frame.bottom)], style.INK, 1.6)
        else:
            named = _labels(frame, self.shown, drawn)
        self._phases(frame)
        self._peak(frame, columns)
        key(drawing, {one: _LOOKS[one] for one in named}, LEFT, frame.bottom + 21)

    def _peak(self, frame: Frame, columns: Sequence[Column]) -> None:
        column = next(it for it in columns if self.totals[it.moment] == self.peak_bytes)
        x, y = (column.left + column.right) / 2, frame.y(self.peak_bytes)
        drawing, over = frame.drawing, frame.top - 8
        drawing.line([(LEFT, y), (_RIGHT, y)], style.WARNING, dashed=True)
        drawing.boxes([(x - 3, y - 3, 6, 6)], style.WARNING)
        drawing.write(LEFT, over, self.name, bold=True)
        words = f"peak {format_bytes(self.peak_bytes)}: {self.where(self.peak)}"
        drawing.write(_RIGHT, over, words, align="right", bold=True)

    def _phases(self, frame: Frame) -> None:
        """A strip under the axis: which phase it is."""
        spans = phase_spans(self.run.phases)
        wide = (_RIGHT - LEFT) / sum(_WIDE.get(phase, 1.0) for phase, _, _ in spans)
        x, y = LEFT, frame.bottom + 4
        for phase, _, _ in spans:
            width = wide * _WIDE.get(phase, 1.0)
            fill = style.MEANINGS.get(phase, (style.IDLE, None))[0]
            frame.drawing.boxes([(x, y, width, 13)], fill)
            if len(phase) * _LETTER_PT < width:
                middle = x + width / 2
                frame.drawing.write(middle, y + 10, phase, align="center", colour=style.on(fill))
            x += width


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


def _areas(frame: Frame, shown: Sequence[str], columns: Sequence[Column]) -> None:
    """What is there, from the bottom up, as far as it is drawn."""
    for level in reversed(range(len(shown))):  # the highest first, the lower ones cover it
        points = [(columns[0].left, frame.bottom)]
        for column in columns:
            y = frame.y(column.stack[level])
            if y != points[-1][1]:
                points += [(column.left, points[-1][1]), (column.left, y)]
        points += [(columns[-1].right, points[-1][1]), (columns[-1].right, frame.bottom)]
        frame.drawing.area(points, _LOOKS[shown[level]])


def _labels(frame: Frame, shown: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Write each category's name where its area has most room; those without room are returned."""
    thin = []
    for level, name in enumerate(shown):
        room, x, y = 0.0, 0.0, 0.0
        for first, column in enumerate(columns):
            end = column.left + _LETTER_PT * len(name)
            window = [it for it in columns[first:] if it.left < end]
            if window[-1].right < end:
                break
            low = frame.y(max(it.stack[level - 1] for it in window) if level else 0)
            high = frame.y(min(it.stack[level] for it in window))
            if low - high > room:
                room, x, y = low - high, column.left, (low + high) / 2
        if room >= _LINE_PT:
            middle = x + _LETTER_PT * len(name) / 2
            ink = style.on(_LOOKS[name])
            frame.drawing.write(middle, y + 3.5, name, align="center", colour=ink)
        else:
            thin.append(name)
    return thin
