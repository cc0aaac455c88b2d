"""Processes with different work, and what goes from one to another, call after call."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow_lines
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import width_pt

_TOP, _HEAD, _ROW, _SIZE = 24.0, 32.0, 22.0, 9.0
Call = tuple[str, str, str]  # from, to, what goes


def who_asks_whom(processes: Mapping[str, str], calls: Sequence[Call], title: str = "") -> Drawing:
    """{process: what it holds} from left to right; below them each call, the earliest on top.

    "all-reduce" goes both ways, as every collective does.
    """
    said = "; ".join(f"{first} to {second}: {what}" for first, second, what in calls)
    head = f"{title} ({len(processes)} in all: {', '.join(processes)})"
    bottom = _TOP + _HEAD + _ROW * len(calls) + 8
    drawing = Drawing(bottom, f"{head}. {said}.")
    drawing.title(title)
    pitch = WIDTH_PT / len(processes)
    x = {name: pitch * (place + 0.5) for place, name in enumerate(processes)}
    drawing.lines([[(at, _TOP + _HEAD), (at, bottom)] for at in x.values()], style.GREY, 0.7)
    boxes = [(at - pitch / 2 + 6, _TOP, pitch - 12, _HEAD) for at in x.values()]
    drawing.boxes(boxes, style.PALE, edge=style.GREY)
    drawing.write_all([(x[name], _TOP + 13, name) for name in processes], 10, "center", bold=True)
    holds = [(x[name], _TOP + 26, held) for name, held in processes.items()]
    drawing.write_all(holds, _SIZE, "center")
    lines, words, grounds = [], [], []
    for row, (first, second, what) in enumerate(calls, 1):
        y, start, end = _TOP + _HEAD + _ROW * row, x[first], x[second]
        step = 2 if end > start else -2
        lines += arrow_lines((start + step, y), (end - step, y))
        if what == "all-reduce":
            lines += arrow_lines((end - step, y), (start + step, y))
        wide = width_pt(what, _SIZE)
        words.append(((start + end) / 2, y - 4, what))
        grounds.append(((start + end - wide) / 2, y - 13, wide, 12.0))
    drawing.boxes(grounds, style.WHITE, edge=style.WHITE)
    drawing.lines(lines, style.MESSAGES, 1.8)
    drawing.write_all(words, _SIZE, "center")
    return drawing
