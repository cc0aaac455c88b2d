"""One moment of a parameter server: its table's versions, and what each trainer computes with."""

from itertools import pairwise

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Point
from course_lib.figures.paper.text import counted, width_pt
from course_lib.theory.network.served_steps import (
    PULL,
    PUSH,
    UPDATE,
    WAIT,
    ServedEvent,
    ServedSteps,
)

_LEFT, _RIGHT = 66.0, WIDTH_PT - 28
_SERVER, _TRAINERS, _ROW, _BAR = 34.0, 86.0, 44.0, 22.0


def served_step(result: ServedSteps, step: int) -> Drawing:
    """Events 0 … `step` on one scale of time.

    Blue arrows go down from the table, pulls; orange ones go up, pushes. In each bar is the version
    that was pulled, and behind its push the number of updates in between. Dashed outlines are what
    the trainers will compute, so that the first event shows how their speeds differ.
    """
    past, trainers = result.events[: step + 1], len(result.compute_s)
    bottom = _TRAINERS + _ROW * trainers
    drawing = Drawing(bottom + 26, _sentence(result, past))
    now = past[-1].at_s
    scale = (_RIGHT - _LEFT) / result.until_s
    title = f"{1000 * now:.0f} ms: the table is at version {past[-1].version}"
    drawing.title(title)
    _ahead(drawing, result, now, scale)
    _messages(drawing, past, scale)
    _table(drawing, past, scale)
    for trainer in range(trainers):
        own = [event for event in past if event.trainer == trainer and event.what != UPDATE]
        _trainer(drawing, trainer, own, now, scale)
        y = _TRAINERS + _ROW * trainer + 10
        drawing.write(_LEFT - 8, y, f"trainer {trainer}", align="right")
        each = f"{1000 * result.compute_s[trainer]:.0f} ms"
        drawing.write(_LEFT - 8, y + 11, each, 9, "right", style.GREY)
    x = _LEFT + now * scale
    drawing.line([(x, _SERVER - 6), (x, bottom)], style.INK, 1, dashed=True)
    drawing.line([(_LEFT, bottom), (_RIGHT, bottom)], style.GREY, 0.7)
    drawing.write(_LEFT, bottom + 14, "0", 9, colour=style.GREY)
    drawing.write(_RIGHT, bottom + 14, f"{1000 * result.until_s:.0f} ms", 9, "right", style.GREY)
    return drawing


def _sentence(result: ServedSteps, past: tuple[ServedEvent, ...]) -> str:
    last, pushes = past[-1], sum(event.what == PUSH for event in past)
    done = {
        PULL: f"pulls version {last.version}",
        WAIT: "must wait for its rows",
        PUSH: f"pushes a gradient that is {last.late} late",
        UPDATE: "was the last, and the table is updated",
    }[last.what]
    return (
        f"At {1000 * last.at_s:.0f} ms trainer {last.trainer} {done}; the table is at version "
        f"{last.version} after {counted(pushes, 'gradient')} of {len(result.compute_s)} trainers."
    )


def _messages(drawing: Drawing, past: tuple[ServedEvent, ...], scale: float) -> None:
    """Vertical arrows between the table and a trainer."""
    for event in past:
        if event.what not in (PULL, PUSH):
            continue
        pull = event.what == PULL
        x = _LEFT + event.at_s * scale + (2.5 if pull else -2.5)
        colour = style.WEIGHTS if pull else style.GRADIENTS
        start, end = _SERVER + _BAR, _TRAINERS + _ROW * event.trainer
        if not pull:
            start, end = end, start
        back = -5 if end > start else 5
        width = 2.6 if event is past[-1] else 1.3
        drawing.line([(x, start), (x, end)], colour, width)
        drawing.line([(x - 3, end + back), (x, end), (x + 3, end + back)], colour, width)


def _ahead(drawing: Drawing, result: ServedSteps, now: float, scale: float) -> None:
    """Outlines of the computing that is still to come, from pull to push."""
    outlines: list[list[Point]] = []
    for trainer in range(len(result.compute_s)):
        own = [event for event in result.events if event.trainer == trainer]
        pulls = [event.at_s for event in own if event.what == PULL]
        y = _TRAINERS + _ROW * trainer
        for start in pulls:
            end = min(start + result.compute_s[trainer], result.until_s)
            if end > now:
                x, right = _LEFT + max(start, now) * scale, _LEFT + end * scale
                outlines.append([(x, y), (right, y), (right, y + _BAR), (x, y + _BAR), (x, y)])
    drawing.lines(outlines, style.GREY, 0.7, dashed=True)


def _table(drawing: Drawing, past: tuple[ServedEvent, ...], scale: float) -> None:
    """Versions of the table, from one update to the next."""
    drawing.write(_LEFT - 8, _SERVER + 15, "table", align="right")
    starts = {0: 0.0}
    for event in past:
        starts.setdefault(event.version, event.at_s)
    edges = [*starts.values(), past[-1].at_s]
    for version, (start, end) in enumerate(pairwise(edges)):
        x, width = _LEFT + start * scale, max(0.5, (end - start) * scale)
        drawing.boxes([(x, _SERVER, width, _BAR)], style.WEIGHTS, edge=style.WHITE)
        name = f"v{version}"
        if width > width_pt(name, 9) + 2:
            y = _SERVER + 15
            drawing.write(x + width / 2, y, name, 9, "center", style.ON_DARK_FILL)
    x = _LEFT + edges[-1] * scale + 5
    drawing.write(x, _SERVER + 15, f"v{past[-1].version}", 9, bold=True)


def _trainer(
    drawing: Drawing, trainer: int, own: list[ServedEvent], now: float, scale: float
) -> None:
    """One row: a bar from pull to push, pale where the trainer waits."""
    y = _TRAINERS + _ROW * trainer
    for place, event in enumerate(own):
        end = own[place + 1].at_s if place + 1 < len(own) else now
        x, width = _LEFT + event.at_s * scale, max(0.5, (end - event.at_s) * scale)
        if event.what == PULL:
            drawing.boxes([(x, y, width, _BAR)], style.COMPUTING)
            had = f"v{event.version}"
            names = [f"with {had}", had]
            if place + 1 < len(own):
                names.insert(0, f"{had}: {own[place + 1].late} late")
            _inside(drawing, names, x, width, y)
        elif end > event.at_s:
            drawing.boxes([(x, y, width, _BAR)], style.IDLE, edge=style.GREY)
            _inside(drawing, ["waits"], x, width, y, style.INK)


def _inside(
    drawing: Drawing,
    names: list[str],
    x: float,
    width: float,
    y: float,
    ink: str = style.ON_FILL,
) -> None:
    """The first of the names that fits."""
    for name in names:
        if width > width_pt(name, 9) + 2:
            drawing.write(x + width / 2, y + 15, name, 9, "center", ink)
            return
