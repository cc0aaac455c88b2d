"""A job on a line of time up to one moment: updates, saves, a lost node, and its goodput."""

from itertools import pairwise

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box, Point
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_duration
from course_lib.theory.step.failing_job import FailingJob, JobMoment, JobSpan

_LEFT, _RIGHT = 66.0, WIDTH_PT - 8
_BAR, _HIGH = 44.0, 28.0
_DONE, _DONE_HIGH = 108.0, 70.0
_KEY = 204.0
_HEIGHT = _KEY + 34
_LOOKS: dict[str, tuple[str, str | None, str]] = {
    "update": (style.FORWARD, None, "new work"),
    "save": (style.STATES, None, "save"),
    "lost": (style.WARNING, "x", "lost"),
    "again": (style.FORWARD, "/", "done again"),
    "notice": (style.IDLE, None, "nobody has noticed"),
    "queue": (style.TEMPORARY, None, "in the queue"),
    "start": (style.MESSAGES, "-", "starts"),
}


def failing_job_step(result: FailingJob, step: int) -> Drawing:
    """What the job has done up to moment `step`; below, updates done and saved over time.

    What is still to come has dashed outlines, so that the first moment shows the whole plan.

    Raises ValueError for a step that does not exist.
    """
    moments = result.moments
    if not 0 <= step < len(moments):
        raise ValueError(f"step {step}: give one from 0 to {len(moments) - 1}")
    now = moments[step]
    drawing = Drawing(_HEIGHT, _sentence(result, now))
    scale = (_RIGHT - _LEFT) / result.total_s
    _bar(drawing, result, now, step, scale)
    _staircase(drawing, result, step, scale)
    x = _LEFT + now.now_s * scale
    drawing.line([(x, _BAR - 8), (x, _DONE + _DONE_HIGH + 4)], style.INK, width=1.8)
    side, shift = ("right", -2) if now.now_s > result.total_s / 2 else ("left", 2)
    y = _DONE + _DONE_HIGH + 15
    drawing.write(x + shift, y, format_duration(now.now_s), size=9, align=side, bold=True)
    drawing.write(0, 14, f"goodput so far {now.goodput:.0%}", size=style.TITLE_PT, bold=True)
    drawing.boxes([(150, 4, 200, 12)], style.WHITE, edge=style.GREY)
    if now.goodput:
        drawing.boxes([(150, 4, 200 * now.goodput, 12)], style.FORWARD)
    _key(drawing)
    return drawing


def _look(span: JobSpan, failed: bool) -> str:
    if span.kind != "update":
        return span.kind
    if span.lost and failed:
        return "lost"
    return "again" if span.again else "update"


def _bar(drawing: Drawing, result: FailingJob, now: JobMoment, step: int, scale: float) -> None:
    failed = now.now_s > result.failed_s
    groups: dict[str, list[Box]] = {}
    for span in result.spans[:step]:
        groups.setdefault(_look(span, failed), []).append(_box(span, scale))
    whole = (_LEFT, _BAR, _RIGHT - _LEFT, _HIGH)
    drawing.boxes([whole], style.WHITE, edge=style.PALE)
    _ahead(drawing, result, step, scale)
    for look, boxes in groups.items():
        fill, hatch, _ = _LOOKS[look]
        drawing.boxes(boxes, fill, hatch)
    drawing.write(_LEFT - 6, _BAR + 18, "the job", size=9, align="right")
    x = _LEFT + result.failed_s * scale
    dies = now.now_s >= result.failed_s
    text, colour, ink = "a node will die", style.GREY, style.GREY
    if dies:
        text, colour, ink = "a node dies", style.WARNING, style.WARNING_TEXT
    ends = [(x, _BAR - 12), (x, _BAR + _HIGH + 4)]
    drawing.line(ends, colour, width=2 if dies else 1, dashed=not dies)
    side, shift = ("right", -4) if x > 140 else ("left", 4)
    drawing.write(x + shift, _BAR - 4, text, size=9, align=side, colour=ink)


def _box(span: JobSpan, scale: float) -> Box:
    return (_LEFT + span.start_s * scale, _BAR, (span.end_s - span.start_s) * scale, _HIGH)


def _ahead(drawing: Drawing, result: FailingJob, step: int, scale: float) -> None:
    """Pieces of work and saves that are still to come, with dashed outlines."""
    fills = {"update": style.WHITE, "save": style.STATES}
    for kind, fill in fills.items():
        boxes = [_box(span, scale) for span in result.spans[step:] if span.kind == kind]
        drawing.boxes(boxes, fill, edge=style.GREY, dashed=True)


def _staircase(drawing: Drawing, result: FailingJob, step: int, scale: float) -> None:
    """Updates done, a line that falls back at the failure, and saved, filled below it."""
    bottom = _DONE + _DONE_HIGH
    high = _DONE_HIGH / result.updates
    drawing.line([(_LEFT, _DONE - 4), (_LEFT, bottom), (_RIGHT, bottom)], style.GREY)
    drawing.line([(_LEFT, _DONE), (_RIGHT, _DONE)], style.PALE, dashed=True)
    for y, text in (
        (_DONE + 4, f"{result.updates}"),
        (_DONE + 26, "pieces"),
        (_DONE + 37, "done"),
        (bottom, "0"),
    ):
        drawing.write(_LEFT - 6, y, text, size=9, align="right", colour=style.GREY)
    saved: list[Box] = []
    past: list[Point] = [(_LEFT, bottom)]
    ahead: list[Point] = []
    for place, (before, after) in enumerate(pairwise(result.moments)):
        x, right = _LEFT + before.now_s * scale, _LEFT + after.now_s * scale
        line = past if place < step else ahead
        line += [(x, bottom - after.done * high)] if after.done < before.done else []
        line.append((right, bottom - after.done * high))
        if before.saved and place < step:
            saved.append((x, bottom - before.saved * high, right - x, before.saved * high))
    drawing.boxes(saved, style.STATES, edge=style.STATES)
    if ahead:
        drawing.line([past[-1], *ahead], style.GREY, dashed=True)
    if step:
        drawing.line(past, style.INK, width=2)


def _key(drawing: Drawing) -> None:
    for place, (fill, hatch, text) in enumerate(_LOOKS.values()):
        x, y = 6 + (place % 4) * 128, _KEY + 17 * (place // 4)
        drawing.boxes([(x, y, 13, 10)], fill, hatch)
        drawing.write(x + 18, y + 9, text, size=9)


def _sentence(result: FailingJob, now: JobMoment) -> str:
    return (
        f"After {format_duration(now.now_s)} of {format_duration(result.total_s)}: "
        f"{counted(now.done, 'piece')} of {result.updates} done, {now.saved} saved; "
        f"goodput so far {now.goodput:.1%}."
    )
