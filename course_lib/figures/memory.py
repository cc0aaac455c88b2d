"""The memory of a GPU by consumer, and over the moments of a step."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from course_lib.figures.engines.bars import stacked_bars
from course_lib.figures.engines.lines import Axis, Curve, Frame, even
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, key
from course_lib.theory.inputs.units import GB, KB, MB, format_bytes
from course_lib.theory.memory.states import MemoryBreakdown

# --- GPU memory by consumer, and its limit --------------------------------------------------------

CONSUMER_LOOKS: Mapping[str, style.Look] = {
    "weights": (style.WEIGHTS, None),
    "gradients": (style.GRADIENTS, None),
    "optimizer": (style.STATES, None),
    "inputs and labels": (style.ACTIVATIONS, "/"),
    "intermediate results": (style.ACTIVATIONS, None),
    "temporary buffers": (style.TEMPORARY, None),
    "framework overhead": (style.PALE, None),
}


def consumer_bars(
    bills: Mapping[str, MemoryBreakdown], title: str = "", capacity_bytes: float | None = None
) -> Drawing:
    """Draw one stacked bar per name, by consumer, and a line at `capacity_bytes`."""
    limit = None if capacity_bytes is None else ("what the GPU holds", capacity_bytes / 1e9)
    rows = {
        row: {name: size / 1e9 for name, size in bill.consumers.items()}
        for row, bill in bills.items()
    }
    return stacked_bars(rows, title, "{:.1f} GB".format, colours=CONSUMER_LOOKS, limit=limit)


# --- Memory over the moments of a step, stacked by category ---------------------------------------

LEFT, _RIGHT, _HEIGHT = 44.0, WIDTH_PT - 8.0, 150.0
PANEL_PT = _HEIGHT + 72
_COLUMNS = 90  # more would be indistinguishable
_MOST_PHASES = 36  # more are merged into one
_LETTER_PT = 6.1  # upper bound of the mean letter width
_LINE_PT = 11.5
# From the bottom: persistent categories, leaks, transient categories.
_MEMORY_OVER_TIME_LOOKS = {
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
# Relative widths, so that a phase has the same position in every panel.
_WIDE = {"forward": 4.0, "backward": 5.0, "update": 2.0}


class MemoryCurve(Protocol):
    """Bytes by category at each moment, predicted or measured; all lists are equally long."""

    @property
    def phases(self) -> Sequence[str]: ...
    @property
    def moments(self) -> Sequence[str]: ...
    @property
    def sizes(self) -> Mapping[str, Sequence[int]]: ...


def memory_over_time(runs: Mapping[str, MemoryCurve], title: str = "") -> Drawing:
    """Draw one panel per run, all on one scale, with phases at the same positions.

    Within a phase the moments are equally spaced: not to scale in time.
    """
    panels = [Panel(name, run) for name, run in runs.items()]
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


class Column(NamedTuple):
    """An interval of the x axis, with the index of the moment it shows."""

    left: float
    right: float
    moment: int


class Panel:
    """The layout of one run: its nonempty categories, from the bottom, and its peak."""

    def __init__(self, name: str, run: MemoryCurve) -> None:
        self.name, self.run = name, run
        self.shown = [it for it in _MEMORY_OVER_TIME_LOOKS if any(run.sizes.get(it, ()))]
        self.totals = [sum(sizes) for sizes in zip(*run.sizes.values(), strict=True)]
        self.peak_bytes = max(self.totals, default=0)
        self.peak = self.totals.index(self.peak_bytes)
        what = run.moments[self.peak].strip("_")
        self.where = run.phases[self.peak] + (f", {what}" if what else "")

    def sentence(self) -> str:
        """A description of the peak: its size, its moment and its categories."""
        parts = [
            f"{name} {format_bytes(self.run.sizes[name][self.peak])}"
            for name in self.shown
            if self.run.sizes[name][self.peak]
        ]
        return (
            f"{self.name}: at most {format_bytes(self.peak_bytes)}, in {self.where}, "
            f"namely {', '.join(parts)}"
        )

    def columns(self) -> list[Column]:
        """The moments side by side; where many share a column, the largest one."""
        columns: list[Column] = []
        for _, left, right, start, stop in self.phases():
            count = min(stop - start, max(1, round(_COLUMNS * (right - left) / (_RIGHT - LEFT))))
            edges = [start + (stop - start) * place // count for place in range(count + 1)]
            for place in range(count):
                most = max(range(edges[place], edges[place + 1]), key=self.totals.__getitem__)
                wide = (right - left) / count
                columns.append(Column(left + wide * place, left + wide * (place + 1), most))
        return columns

    def phases(self) -> list[tuple[str, float, float, int, int]]:
        """Runs of moments in one phase: (name, left, right, first moment, end).

        Beyond _MOST_PHASES they are merged into one, named by their number.
        """
        spans, start = [], 0
        for phase, group in groupby(self.run.phases):
            stop = start + len(list(group))
            spans.append((phase, start, stop))
            start = stop
        if len(spans) > _MOST_PHASES:
            spans = [(f"{len(spans):,} phases", 0, start)]
        wide = (_RIGHT - LEFT) / sum(_WIDE.get(phase, 1.0) for phase, _, _ in spans)
        placed, x = [], LEFT
        for phase, start, stop in spans:
            right = x + wide * _WIDE.get(phase, 1.0)
            placed.append((phase, x, right, start, stop))
            x = right
        return placed

    def draw(self, drawing: Drawing, top: float, most_bytes: int) -> None:
        """Draw axes, areas, labels, phases and peak."""
        unit, name = next(it for it in _UNITS if most_bytes >= it[0])
        ticks = even([0, 1.02 * most_bytes], most=5).ticks
        up = Axis(ticks, lambda it: f"{it / unit:g}{f' {name}' * (it == ticks[-1])}")
        across = Axis((), ends=(LEFT, _RIGHT))
        frame = Frame(drawing, across, up, LEFT, top + 20, _RIGHT, top + 20 + _HEIGHT)
        columns = self.columns()
        frame.axes()
        frame.stack(
            [
                Curve(
                    [(it.left, self.run.sizes[one][it.moment]) for it in columns],
                    fill=_MEMORY_OVER_TIME_LOOKS[one],
                )
                for one in self.shown
            ]
        )
        thin = self._labels(frame, columns)
        y = frame.bottom + 4
        for phase, left, right, _, _ in self.phases():  # a strip under the axis
            fill = style.MEANINGS.get(phase, (style.IDLE, None))[0]
            drawing.boxes([(left, y, right - left, 13)], fill)
            if len(phase) * _LETTER_PT < right - left:
                middle, ink = (left + right) / 2, style.on(fill)
                drawing.write(middle, y + 10, phase, align="center", colour=ink)
        self._peak(frame, columns)
        key(drawing, {one: _MEMORY_OVER_TIME_LOOKS[one] for one in thin}, LEFT, frame.bottom + 21)

    def _peak(self, frame: Frame, columns: Sequence[Column]) -> None:
        column = next(it for it in columns if self.totals[it.moment] == self.peak_bytes)
        x, y = (column.left + column.right) / 2, frame.y(self.peak_bytes)
        drawing, over = frame.drawing, frame.top - 8
        drawing.line([(LEFT, y), (_RIGHT, y)], style.WARNING, dashed=True)
        drawing.boxes([(x - 3, y - 3, 6, 6)], style.WARNING)
        drawing.write(LEFT, over, self.name, bold=True)
        words = f"peak {format_bytes(self.peak_bytes)}: {self.where}"
        drawing.write(_RIGHT, over, words, align="right", bold=True)

    def _labels(self, frame: Frame, columns: Sequence[Column]) -> list[str]:
        """Write each name where its area is highest; returns those without room."""
        thin = []
        tops = [[0.0] * len(columns)]
        for name in self.shown:
            sizes = [self.run.sizes[name][it.moment] for it in columns]
            tops.append([low + size for low, size in zip(tops[-1], sizes, strict=True)])
            low, high = tops[-2:]
            room, x, y = 0.0, 0.0, 0.0
            for first, column in enumerate(columns):
                end = column.left + _LETTER_PT * len(name)
                last = sum(it.left < end for it in columns)
                if columns[last - 1].right < end:
                    break
                base, edge = frame.y(max(low[first:last])), frame.y(min(high[first:last]))
                if base - edge > room:
                    room, x, y = base - edge, column.left, (base + edge) / 2
            if room >= _LINE_PT:
                middle = x + _LETTER_PT * len(name) / 2
                ink = style.on(_MEMORY_OVER_TIME_LOOKS[name])
                frame.drawing.write(middle, y + 3.5, name, align="center", colour=ink)
            else:
                thin.append(name)
        return thin
