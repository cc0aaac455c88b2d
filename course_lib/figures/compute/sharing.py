"""Streams that share a processor: one row a stream, one box a task, as high as it is fast."""

from collections.abc import Mapping
from typing import Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.style import Look
from course_lib.theory.inputs.units import format_seconds
from course_lib.theory.step.streams import SharedTimeline

_LEFT, _RIGHT, _ROW, _FULL = 74.0, WIDTH_PT - 6.0, 42.0, 34.0
_HEAD, _FOOT = 24.0, 20.0
# By the first word of a task's name; other words take what is left, in their order.
_KNOWN: dict[str, Look] = {
    "forward": (style.FORWARD, None),
    "backward": (style.BACKWARD, None),
    "prepare": (style.TEMPORARY, "xx"),
    "message": (style.MESSAGES, None),
    "gather": (style.MESSAGES, None),
    "scatter": (style.MESSAGES, "//"),
}
_MOST = 6  # kinds


class _Named(Protocol):
    @property
    def task(self) -> str: ...


def shared_rates(charts: Mapping[str, SharedTimeline]) -> Sheet:
    """One chart under another on one scale: {"alone": timeline, "sharing": timeline}.

    A box as high as its row runs at full speed, half as high at half speed, so a box's area is its
    work. The first word of a task's name is its kind. Raises ValueError without a chart and for
    more than six kinds.
    """
    if not charts:
        raise ValueError('charts is empty: give for example {"sharing": timeline}')
    kinds = list(dict.fromkeys(_kind(span) for run in charts.values() for span in run.spans))
    if len(kinds) > _MOST:
        raise ValueError(f"{len(kinds)} kinds of task: name at most {_MOST}")
    looks = style.looks(kinds, _KNOWN)
    heights = [_HEAD + _ROW * len(_streams(run)) + _FOOT for run in charts.values()]
    legend = 18 * -(-(len(kinds) + 1) // 5)
    sheet = Sheet(sum(heights) + legend + 8, _sentence(charts))
    scale = (_RIGHT - _LEFT) / max(run.total_s for run in charts.values())
    top = 0.0
    for (name, run), height in zip(charts.items(), heights, strict=True):
        _chart(sheet, f"{name}: {format_seconds(run.total_s)}", run, top, scale, looks)
        top += height
    sheet.write(4, top + 14, "height: speed")
    for place, (kind, look) in enumerate(looks.items(), start=1):
        x, y = 4 + (place % 5) * 104, top + 4 + 18 * (place // 5)
        sheet.boxes([(x, y, 14, 11)], *look)
        sheet.write(x + 20, y + 10, kind)
    return sheet


def _chart(
    sheet: Sheet,
    title: str,
    run: SharedTimeline,
    top: float,
    scale: float,
    looks: Mapping[str, Look],
) -> None:
    sheet.write(0, top + 15, title, size=style.TITLE_PT, bold=True)
    for row, stream in enumerate(_streams(run)):
        foot = top + _HEAD + _ROW * (row + 1) - 4
        sheet.write(_LEFT - 6, foot - 12, stream, align="right")
        sheet.line([(_LEFT, foot), (_RIGHT, foot)], style.GREY)
        for kind, look in looks.items():
            boxes = [
                (
                    _LEFT + span.start_s * scale,
                    foot - _FULL * span.rate,
                    (span.end_s - span.start_s) * scale,
                    _FULL * span.rate,
                )
                for span in run.spans
                if span.stream == stream and _kind(span) == kind
            ]
            sheet.boxes(boxes, *look)
    end = top + _HEAD + _ROW * len(_streams(run)) + 10
    sheet.write(_LEFT, end, "0 s", size=9, colour=style.GREY)
    right = min(_RIGHT, max(_LEFT + run.total_s * scale, _LEFT + 90))
    text = format_seconds(run.total_s)
    sheet.write(right, end, text, size=9, align="right", colour=style.GREY)


def _streams(run: SharedTimeline) -> list[str]:
    """That with most work first, as profiles have it: what it waits for stands below."""
    work: dict[str, float] = {}
    for task in run.tasks:
        work[task.stream] = work.get(task.stream, 0) + task.alone_s
    return sorted(work, key=work.__getitem__, reverse=True)


def _kind(span: _Named) -> str:
    return span.task.split(" ", 1)[0]


def _sentence(charts: Mapping[str, SharedTimeline]) -> str:
    parts = []
    for name, run in charts.items():
        waits = ", ".join(
            f"{stream} works {format_seconds(run.busy_s(stream))}" for stream in _streams(run)
        )
        parts.append(f"{name}: ends after {format_seconds(run.total_s)}; {waits}")
    return ". ".join(parts) + "."
