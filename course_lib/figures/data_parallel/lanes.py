"""Two lanes of a rank of FSDP, computing and messages: where a step's time goes."""

from collections.abc import Collection, Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import width_pt
from course_lib.theory.inputs.units import format_duration
from course_lib.theory.memory.unit_life import COMPUTES
from course_lib.trace import Event

LEFT, RIGHT = 66.0, WIDTH_PT - 6
LANE, GAP = 22.0, 5.0  # height of a lane, and space between two
BOTH = 2 * LANE + GAP
_TOP, _CHART = 4.0, BOTH + 48
_LANES = ("computing", "messages")
_LOOKS = {
    "forward": style.FORWARD,
    "backward": style.BACKWARD,
    "all-gather": style.MESSAGES,
    "reduce-scatter": style.lighter(style.MESSAGES),
}


def two_lanes(charts: Mapping[str, Sequence[Event]]) -> Drawing:
    """Charts below one another on one scale: {"predicted": tasks, "measured": tasks}.

    The number in a bar is its unit; 0 is the root. Raises ValueError for a chart without tasks.
    """
    for name, tasks in charts.items():
        if not tasks:
            raise ValueError(f"chart {name!r} has no tasks: give at least one pass")
    ends = {name: max(task.until for task in tasks) for name, tasks in charts.items()}
    scale = (RIGHT - LEFT) / max(ends.values())
    words = "; ".join(f"{name}: {format_duration(end)}" for name, end in ends.items())
    drawing = Drawing(_TOP + _CHART * len(charts) + 18, f"One step of one rank: {words}.")
    for place, (name, tasks) in enumerate(charts.items()):
        top = _TOP + _CHART * place
        drawing.write(0, top + 10, name, size=style.TITLE_PT, bold=True)
        lanes(drawing, tasks, top + 18, scale)
        end = LEFT + ends[name] * scale
        bottom = top + 18 + BOTH
        drawing.line([(end, top + 14), (end, bottom + 4)], style.INK, width=1.5)
        drawing.write(end, bottom + 15, format_duration(ends[name]), size=9, align="right")
    kinds = {task.what for tasks in charts.values() for task in tasks}
    key(drawing, _TOP + _CHART * len(charts) + 2, kinds=kinds)
    return drawing


def lanes(
    drawing: Drawing, tasks: Sequence[Event], top: float, scale: float, now_s: float | None = None
) -> None:
    """Both lanes from LEFT on, `scale` points a second; what begins after `now_s` is pale."""
    for row, name in enumerate(_LANES):
        y = top + row * (LANE + GAP)
        drawing.write(LEFT - 6, y + 15, name, align="right", size=9)
        drawing.line([(LEFT, y + LANE), (RIGHT, y + LANE)], style.PALE)
    for what, fill in _LOOKS.items():
        its = [task for task in tasks if task.what == what and task.until > task.at]
        begun = [task for task in its if now_s is None or task.at <= now_s]
        drawing.boxes([_box(task, top, scale) for task in begun], fill)
        later = [_box(task, top, scale) for task in its if task not in begun]
        drawing.boxes(later, style.PALE, edge=style.GREY)
    numbers: dict[str, list[tuple[float, float, str]]] = {style.ON_FILL: [], style.INK: []}
    for task in tasks:
        x, y, width, _ = _box(task, top, scale)
        text = task.label
        pale = now_s is not None and task.at > now_s
        if width >= width_pt(text, 9) + 3:
            numbers[style.INK if pale else style.ON_FILL].append((x + width / 2, y + 15, text))
    for colour, texts in numbers.items():
        if texts:
            drawing.write_all(texts, size=9, align="center", colour=colour)


def key(
    drawing: Drawing,
    top: float,
    more: Mapping[str, str] | None = None,
    *,
    kinds: Collection[str] = tuple(_LOOKS),
) -> None:
    """What the colours of `kinds` of bars mean, in a line of 14 points; `more`: {words: colour}."""
    looks = {kind: look for kind, look in _LOOKS.items() if kind in kinds}
    looks |= more or {}
    for place, (text, fill) in enumerate(looks.items()):
        x = LEFT + place * 90
        drawing.boxes([(x, top, 13, 10)], fill)
        drawing.write(x + 18, top + 9, text, size=9)


def _box(task: Event, top: float, scale: float) -> Box:
    y = top + (task.what not in COMPUTES) * (LANE + GAP)
    return LEFT + task.at * scale, y, max(0.8, (task.until - task.at) * scale), LANE
