"""Time of an update against the number of trainers: parameter servers, and an all-reduced table."""

import math
from dataclasses import replace

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.network.served import ServedTraining

_LEFT, _TOP, _WIDTH, _HEIGHT = 62.0, 60.0, 440.0, 180.0
_DOUBLINGS = 12  # trainers from 1 to 4096
# Colour, dashed.
_LOOKS = {
    "in step": (style.BLUE, False),
    "as they come": (style.PINK, True),
    "all-reduced table": (style.GREEN, False),
}


def served_updates(training: ServedTraining, table_rows: int, title: str = "") -> Sheet:
    """Seconds against trainers, both logarithmic: in step, as they come, and without a server.

    Upright: where the servers' links are full, and the training's own trainers. Below, how busy a
    server's link is.
    """
    sheet = Sheet(_TOP + _HEIGHT + 142, sentence(training, table_rows))
    heading = f"{counted(training.trainers, 'trainer')}, {counted(training.servers, 'server')}"
    sheet.title(title or heading)
    sheet.write(0, 30, "time of an update (both axes logarithmic)", colour=style.GREY)
    curves = _curves(training, table_rows)
    place = _Scale([time for points in curves.values() for _, time in points])
    _axes(sheet, place)
    _marks(sheet, place, training)
    for name, points in curves.items():
        colour, dashed = _LOOKS[name]
        sheet.line([place(*point) for point in points], colour, 2, dashed)
    times = _times(training, table_rows)
    for name, time_s in times.items():
        sheet.dot(*place(training.trainers, time_s), _LOOKS[name][0], radius=4)
    _key(sheet, times, training)
    _load(sheet, training)
    return sheet


def sentence(training: ServedTraining, table_rows: int) -> str:
    """The three times, the load and the number of trainers that fill the link, in words."""
    times = _times(training, table_rows)
    in_step, free, table = map(format_seconds, times.values())
    return (
        f"{counted(training.trainers, 'trainer')} and {counted(training.servers, 'server')}: an "
        f"update takes {in_step} in step, {free} as they come, {table} with an all-reduced table "
        f"instead. As they come, the link of a server is busy for {training.server_load:.0%} of "
        f"the time; {_number(training.saturating_trainers)} trainers fill it."
    )


def _times(training: ServedTraining, table_rows: int) -> dict[str, float]:
    seconds = (
        training.in_step_s,
        training.as_they_come_s,
        training.all_reduced_s(table_rows),
    )
    return dict(zip(_LOOKS, seconds, strict=True))


def _curves(training: ServedTraining, rows: int) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in _LOOKS}
    for trainers in sorted({round(2 ** (part / 4)) for part in range(4 * _DOUBLINGS + 1)}):
        for name, time_s in _times(replace(training, trainers=trainers), rows).items():
            found[name].append((trainers, time_s))
    return found


class _Scale:
    """Where a number of trainers and a time lie; whole decades of seconds around all times."""

    def __init__(self, times: list[float]) -> None:
        times = [time for time in times if time > 0]
        self.top = math.ceil(math.log10(max(times)))
        self.decades = max(1, self.top - math.floor(math.log10(min(times))))

    def __call__(self, trainers: float, time_s: float) -> tuple[float, float]:
        least = 10.0 ** (self.top - self.decades)
        down = (self.top - math.log10(max(time_s, least))) / self.decades
        return self.across(trainers), _TOP + min(max(down, 0), 1) * _HEIGHT

    @staticmethod
    def across(trainers: float) -> float:
        return _LEFT + min(math.log2(trainers) / _DOUBLINGS, 1) * _WIDTH


def _axes(sheet: Sheet, place: _Scale) -> None:
    bottom = _TOP + _HEIGHT
    for decade in range(0, place.decades + 1, math.ceil(place.decades / 7)):
        time_s = 10.0 ** (place.top - decade)
        _, y = place(1, time_s)
        sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], style.PALE)
        text = format_seconds(time_s)
        sheet.write(_LEFT - 6, y + 4, text, align="right", colour=style.GREY, size=9)
    for doubling in range(0, _DOUBLINGS + 1, 2):
        x = place.across(2**doubling)
        sheet.line([(x, _TOP), (x, bottom)], style.PALE)
        sheet.write(x, bottom + 14, f"{2**doubling:,}", align="center", colour=style.GREY, size=9)
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
    sheet.write(_LEFT + _WIDTH / 2, bottom + 29, "trainers", align="center")


def _marks(sheet: Sheet, place: _Scale, training: ServedTraining) -> None:
    """Upright lines: the trainers that fill the servers' links, and those that there are."""
    bottom, full = _TOP + _HEIGHT, training.saturating_trainers
    if full <= 2**_DOUBLINGS:
        x = place.across(full)
        sheet.line([(x, _TOP), (x, bottom)], style.GREY, dashed=True)
    x = place.across(training.trainers)
    sheet.line([(x, _TOP - 8), (x, bottom)])
    align = "right" if x > _LEFT + _WIDTH / 2 else "left"
    sheet.write(x, _TOP - 12, counted(training.trainers, "trainer"), align=align)


def _key(sheet: Sheet, times: dict[str, float], training: ServedTraining) -> None:
    told = {name: format_seconds(time_s) for name, time_s in times.items()}
    told["servers' links full"] = f"{_number(training.saturating_trainers)} trainers"
    looks = _LOOKS | {"servers' links full": (style.GREY, True)}
    for row, (name, text) in enumerate(told.items()):
        y = _TOP + _HEIGHT + 50 + 17 * row
        sheet.line([(_LEFT, y - 4), (_LEFT + 34, y - 4)], looks[name][0], 2, looks[name][1])
        sheet.write(_LEFT + 42, y, name)
        sheet.write(_LEFT + 190, y, text)


def _load(sheet: Sheet, training: ServedTraining) -> None:
    """A bar: the part of the time in which a server's link receives."""
    y = _TOP + _HEIGHT + 118
    sheet.write(_LEFT, y + 12, "a server's link, as they come")
    sheet.boxes([(_LEFT + 190, y, 160, 15)], style.WHITE, edge=style.GREY)
    sheet.boxes([(_LEFT + 190, y, 160 * training.server_load, 15)], style.MESSAGES)
    sheet.write(_LEFT + 358, y + 12, f"busy {training.server_load:.0%}")


def _number(trainers: float) -> str:
    return format_number(trainers)
