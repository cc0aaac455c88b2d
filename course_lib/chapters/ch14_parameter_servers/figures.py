"""Figures of chapter 14, in addition to the library's."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from course_lib.chapters.ch14_parameter_servers.exchanges import ServedTraining
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lines import Curve, graph, lines, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_number, format_seconds

# --- late ---------------------------------------------------------------------------------------
# The staleness of each trainer's gradients.


def late_gradients(
    staleness: Sequence[Sequence[int]], title: str = "How late gradients come"
) -> Drawing:
    """Draw a curve per trainer t; `staleness[t]`: updates by which each gradient was late."""
    most = max(map(max, staleness)) + 1
    curves = {
        f"trainer {trainer}: mean {fmean(delays):.1f}": [
            (late, 100 * delays.count(late) / len(delays)) for late in range(most + 1)
        ]
        for trainer, delays in enumerate(staleness)
    }
    return lines(curves, "updates in between", "of its gradients, in %", title)


# --- servers ------------------------------------------------------------------------------------
# Time of an update against the number of trainers: parameter servers, and an all-reduced table.


_DOUBLINGS = 12  # trainers from 1 to 4096
_LOOKS = {
    "in step": (style.BLUE, False),
    "as they come": (style.PINK, True),
    "all-reduced table": (style.GREEN, False),
}


def served_updates(training: ServedTraining, table_rows: int, title: str = "") -> Drawing:
    """Draw seconds against trainers, both logarithmic: in step, as they come, without a server.

    Vertical marks: where the servers' links are saturated, and the trainers of `training`.
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
    busy = f"as they come, a server's link is busy {training.server_load:.0%} of the time"
    return graph(
        curves,
        title or f"{own}, {counted(training.servers, 'server')}",
        powers([1, 2**_DOUBLINGS], "{:,.0f}".format, "trainers", base=2, most=7),
        powers(seconds, format_seconds, "time of an update (both axes logarithmic)", most=8),
        marks=marks,
        notes=[*notes, busy],
    ).drawing


def _times(training: ServedTraining, table_rows: int) -> dict[str, float]:
    seconds = training.in_step_s, training.as_they_come_s, training.all_reduced_s(table_rows)
    return dict(zip(_LOOKS, seconds, strict=True))


# --- used rows ----------------------------------------------------------------------------------
# The rows of a table, and those that a batch uses.


def used_rows(
    looked_up: Sequence[int], gradient: Sequence[Sequence[float]], title: str = ""
) -> Drawing:
    """Draw how often a batch uses each row of a table, and the table's `gradient`, zeros pale."""
    grid = {}
    for row, values in enumerate(gradient):
        used = [*looked_up].count(row)
        grid[f"row {row}"] = {
            str(column): Cell(f"{value:g}", {0: "gradient" if value else "zero"})
            for column, value in enumerate(values)
        } | {"used": Cell(f"used {counted(used, 'time')}" if used else "", slots=0)}
    lookups = f"{counted(len(looked_up), 'look-up')}: rows {', '.join(map(str, looked_up))}"
    return page(title, Cells(grid, heads=False, note=f"{lookups}; the table's gradient"))
