"""A job on a line of time up to one moment: updates, saves, a lost node, and its goodput."""

from itertools import pairwise

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
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
        box = (_LEFT + span.start_s * scale, _BAR, (span.end_s - span.start_s) * scale, _HIGH)
        groups.setdefault(_look(span, failed), []).append(box)
    whole = (_LEFT, _BAR, _RIGHT - _LEFT, _HIGH)
    drawing.boxes([whole], style.WHITE, edge=style.PALE)
    for look, boxes in groups.items():
        fill, hatch, _ = _LOOKS[look]
        drawing.boxes(boxes, fill, hatch)
    drawing.write(_LEFT - 6, _BAR + 18, "the job", size=9, align="right")
    if failed or now.now_s == result.failed_s:
        x = _LEFT + result.failed_s * scale
        drawing.line([(x, _BAR - 12), (x, _BAR + _HIGH + 4)], style.WARNING, width=2)
        side, shift = ("right", -4) if x > 140 else ("left", 4)
        text = "a node dies"
        drawing.write(x + shift, _BAR - 4, text, size=9, align=side, colour=style.WARNING_TEXT)


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
    moments = result.moments[: step + 1]
    saved: list[Box] = []
    line = [(_LEFT, bottom)]
    for before, after in pairwise(moments):
        x, right = _LEFT + before.now_s * scale, _LEFT + after.now_s * scale
        if before.saved:
            saved.append((x, bottom - before.saved * high, right - x, before.saved * high))
        falls = after.done < before.done
        if falls:
            line.append((x, bottom - after.done * high))
        line.append((right, bottom - after.done * high))
    drawing.boxes(saved, style.STATES, edge=style.STATES)
    if len(line) > 1:
        drawing.line(line, style.INK, width=2)


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
