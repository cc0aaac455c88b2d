"""Figures of chapter 14, beside those of the library."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from course_lib.chapters.ch14_parameter_servers.exchanges import ServedTraining
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Axis, Curve, Frame, graph, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted, elide, width_pt
from course_lib.theory.inputs.units import format_number, format_seconds

# --- late ---------------------------------------------------------------------------------------
# How late the gradients of each trainer were: a histogram for each.


_LEFT, _TOP, _WIDTH, _ROW, _BAR = 92.0, 44.0, 400.0, 46.0, 30.0
_TRAINERS = 8  # more than these are elided
_BARS = 20  # where there are more delays, several share a bar


def late_gradients(
    staleness: Sequence[Sequence[int]], title: str = "How late gradients come"
) -> Drawing:
    """`staleness[t]`: by how many updates each gradient of trainer t was late."""
    rows, every = elide(len(staleness), _TRAINERS), [late for own in staleness for late in own]
    share = -(-(max(every) + 1) // _BARS)
    bars = max(every) // share + 1
    bottom = _TOP + _ROW * (len(rows) - 1) + _BAR
    drawing = Drawing(bottom + 34, _sentence(staleness, every))
    drawing.title(title)
    ticks = [bar + 0.5 for bar in range(0, bars, -(-bars // 12))]
    words = "updates in between" + f", {share} to a bar" * (share > 1)
    across = Axis(ticks, lambda tick: str(int(tick) * share), words, ends=(0, bars))
    frame = Frame(drawing, across, across, _LEFT, _TOP, _LEFT + _WIDTH, bottom)
    frame.ticks_across()
    for row, trainer in enumerate(rows):
        y = _TOP + _ROW * row + _BAR
        if trainer is None:
            drawing.write(_LEFT - 8, y, "…", align="right")
            continue
        counts = Counter(late // share for late in staleness[trainer])
        high = _BAR / max(counts.values())
        drawing.boxes(
            [
                (frame.x(bar + 0.1), y - high * count, 0.8 * _WIDTH / bars, high * count)
                for bar, count in sorted(counts.items())
            ],
            style.GRADIENTS,
        )
        drawing.line([(_LEFT, y), (_LEFT + _WIDTH, y)])
        drawing.write(_LEFT - 8, y - 12, f"trainer {trainer}", align="right")
        mean = f"mean {fmean(staleness[trainer]):.1f}"
        drawing.write(_LEFT - 8, y, mean, align="right", colour=style.GREY)
    return drawing


def _sentence(staleness: Sequence[Sequence[int]], every: Sequence[int]) -> str:
    """The mean of each trainer and of all, in words."""
    means = ", ".join(f"{fmean(own):.1f}" for own in staleness)
    return (
        f"{counted(len(every), 'gradient')} of {counted(len(staleness), 'trainer')}, late by "
        f"{fmean(every):.1f} updates on average, {max(every)} at most; by trainer {means}."
    )


# --- servers ------------------------------------------------------------------------------------
# Time of an update against the number of trainers: parameter servers, and an all-reduced table.


_DOUBLINGS = 12  # trainers from 1 to 4096
_LOOKS = {
    "in step": (style.BLUE, False),
    "as they come": (style.PINK, True),
    "all-reduced table": (style.GREEN, False),
}


def served_updates(training: ServedTraining, table_rows: int, title: str = "") -> Drawing:
    """Seconds against trainers, both logarithmic: in step, as they come, and without a server.

    Upright: where the servers' links are full, and the training's own trainers. Below, how busy a
    server's link is.
    """
    trainers = sorted({round(2 ** (part / 4)) for part in range(4 * _DOUBLINGS + 1)})
    every = [_times(replace(training, trainers=count), table_rows) for count in trainers]
    curves = {}
    for name, time_s in _times(training, table_rows).items():
        points = list(zip(trainers, (times[name] for times in every), strict=True))
        (colour, dashed), dots = _LOOKS[name], [(training.trainers, time_s)]
        curves[name] = Curve(points, colour, format_seconds(time_s), dashed, dots)
    own = counted(training.trainers, "trainer")
    marks: dict[str, float] = {own: training.trainers}
    notes = []
    full = f"{format_number(training.saturating_trainers)} trainers fill the servers' links"
    if training.saturating_trainers <= 2**_DOUBLINGS:
        marks[full] = training.saturating_trainers
    else:
        notes.append(full)
    seconds = [time_s for times in every for time_s in times.values() if time_s > 0]
    frame = graph(
        curves,
        title or f"{own}, {counted(training.servers, 'server')}",
        powers([1, 2**_DOUBLINGS], "{:,.0f}".format, "trainers", base=2, most=7),
        powers(seconds, format_seconds, "time of an update (both axes logarithmic)", most=8),
        marks=marks,
        notes=notes,
        more=22,
    )
    drawing, busy = frame.drawing, f"busy {training.server_load:.0%}"
    y = drawing.height_pt - 20
    drawing.write(frame.left, y + 12, "a server's link, as they come")
    drawing.boxes([(frame.left + 190, y, 160, 15)], style.WHITE, edge=style.GREY)
    drawing.boxes([(frame.left + 190, y, 160 * training.server_load, 15)], style.MESSAGES)
    drawing.write(frame.left + 358, y + 12, busy)
    drawing.sentence += f" The link of a server, as they come: {busy}."
    return drawing


def _times(training: ServedTraining, table_rows: int) -> dict[str, float]:
    seconds = training.in_step_s, training.as_they_come_s, training.all_reduced_s(table_rows)
    return dict(zip(_LOOKS, seconds, strict=True))


# --- used rows ----------------------------------------------------------------------------------
# The rows of a table, and which of them a batch uses.


_BOX, _ROOM = 46.0, 116.0  # of a look-up, and of all that stands left of the table


class _Table(Cells):
    """The table, and left of it a box for each look-up, with a line to its row."""

    looked_up: Sequence[int] = ()

    def _across(self) -> tuple[dict[str, float], dict[str, float]]:
        self.left += _ROOM
        return super()._across()

    def draw(self, drawing: Drawing, top: float) -> None:
        super().draw(drawing, top)
        pitch = self._row_height("row 0")
        top += self.height_pt - pitch * len(self.grid)
        apart = min(pitch, pitch * len(self.grid) / len(self.looked_up))
        ends = [(top + apart * place + 10, row) for place, row in enumerate(self.looked_up)]
        names = self.left - 12 - max(width_pt(name, 9) for name in self.grid)
        middle = top + self.high["row 0"] / 2
        lines = [[(_BOX, y), (names, middle + pitch * row)] for y, row in ends]
        drawing.lines(lines, style.GREY)
        drawing.boxes([(0, y - 8, _BOX, 16.0) for y, _ in ends], style.PALE, edge=style.GREY)
        texts = [(_BOX / 2, y + 3.3, str(row)) for y, row in ends]
        drawing.write_all(texts, 9, "center")


def used_rows(
    looked_up: Sequence[int], gradient: Sequence[Sequence[float]], title: str = ""
) -> Drawing:
    """Left: the rows that a batch looks up. Right: the table's `gradient`, zeros pale."""
    grid = {}
    for row, values in enumerate(gradient):
        used = [*looked_up].count(row)
        grid[f"row {row}"] = {
            str(column): Cell(f"{value:g}", {0: "gradient" if value else "zero"})
            for column, value in enumerate(values)
        } | {"used": Cell(f"used {counted(used, 'time')}" if used else "", slots=0)}
    told = f"{counted(len(looked_up), 'look-up')}: rows {', '.join(map(str, looked_up))}"
    high = max(20, 18 * len(looked_up) / len(grid) - 5)  # room for all look-ups
    table = _Table(grid, heads=False, high=high, note=f"{told}; right, the table's gradient")
    table.looked_up = looked_up
    return page(title, table)
