"""Time of an update against the number of trainers: parameter servers, and an all-reduced table."""

from dataclasses import replace

from course_lib.figures.engines.axis import powers
from course_lib.figures.engines.lines import Curve, graph
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.network.served import ServedTraining

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
