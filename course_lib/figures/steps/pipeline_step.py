"""One moment of a pipeline: above what has run, below what each stage holds."""

from collections.abc import Iterator, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.theory.pipelines.moments import AtStage, Held, Moment
from course_lib.theory.pipelines.schedules import Schedule
from course_lib.theory.pipelines.timeline import Task, Timeline

_LEFT, _RIGHT, _TOP = 54.0, WIDTH_PT - 4, 26.0
_ROWS, _ROW_MOST = 168.0, 22.0
_DOWN, _ROUND, _UP = 64.0, 82.0, 98.0
_NOW, _RUNS, _SLOTS, _SLOTS_END = 106.0, 78.0, 194.0, 436.0
_HELD_ROW = 24.0
_NUMBER_PT = 7.5
_FILLS = {
    "F": style.FORWARD,
    "B": style.BACKWARD,
    "I": style.INPUT_GRADIENT,
    "W": style.WEIGHT_GRADIENT,
}
_TITLES = {
    "naive": "One after another",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved 1F1B",
    "zb1p": "Zero bubble, ZB-H1",
    "zbv": "Zero bubble, ZB-V",
    "dualpipe": "DualPipe",
}
_NAMES = {"F": "forward", "B": "backward", "I": "input grad.", "W": "weight grad."}


def pipeline_step(line: Timeline, moments: Sequence[Moment], step: int) -> Drawing:
    """`line` up to moments[step], with what every stage runs, sends and holds at that time.

    Slot i of a stage is micro-batch i; a chunk has its own row of slots. Lighter: later chunks.
    """
    moment = moments[step]
    row = min(_ROW_MOST, _ROWS / line.stages)
    below = _TOP + line.stages * row + 34
    drawing = Drawing(below + line.stages * _HELD_ROW + 8, _sentence(line, moment))
    _timeline(drawing, line, moment, row)
    _headings(drawing, below - 6)
    idle = "waits" if moment.time < line.makespan else "done"
    for stage, at in enumerate(moment.stages):
        top = below + stage * _HELD_ROW
        _stage(drawing, line.schedule, at, stage, top)
        _running(drawing, at.running, top, idle)
    _messages(drawing, moment, below)
    return drawing


def _sentence(line: Timeline, moment: Moment) -> str:
    share = line.schedule.visits
    held = ", ".join(f"{len(at.held) / share:g}" for at in moment.stages)
    most = ", ".join(f"{at.most:g}" for at in moment.stages)
    return (
        f"{line.schedule.name} at {moment.time:.4g} of {line.makespan:.4g}: the {line.stages} "
        f"stages hold {held} micro-batches, at most {most} so far."
    )


def _timeline(drawing: Drawing, line: Timeline, moment: Moment, row: float) -> None:
    """Passes that are over or under way in colour, later ones as outlines, and the cursor."""
    scale, plan = (_RIGHT - _LEFT) / line.makespan, line.schedule
    several = "es" if plan.micro_batches > 1 else ""
    sizes = f"{line.stages} stages, {plan.micro_batches} micro-batch{several}"
    title = f"{_TITLES[plan.name]}: {sizes}"
    drawing.title(title)
    height, now = line.stages * row, _LEFT + moment.time * scale
    drawing.boxes([(_LEFT, _TOP, _RIGHT - _LEFT, height)], style.IDLE, edge=style.IDLE)
    for stage in range(line.stages):
        _name(drawing, stage, _TOP + (stage + 0.5) * row)
    looks: dict[str, list[tuple[Box, str]]] = {}
    for task in line.tasks:
        begun = task.start < moment.time + 1e-9 * line.makespan
        for fill, box, number in _bars(task, row, scale):
            looks.setdefault(fill if begun else style.WHITE, []).append((box, number))
    for fill, bars in looks.items():
        later = fill == style.WHITE
        edge = style.GREY if later else style.INK
        drawing.boxes([box for box, _ in bars], fill, edge=edge)
        ink = style.GREY if later else style.ON_FILL
        _numbers(drawing, [(box, number) for box, number in bars if _fits(box, number)], ink)
    bottom = _TOP + height
    drawing.line([(now, _TOP - 4), (now, bottom + 4)], style.INK, 1.6)
    side = "left" if now < _LEFT + 30 else "right" if now > _RIGHT - 30 else "center"
    drawing.write(now, bottom + 14, f"{moment.time:.4g}", size=9, align=side, bold=True)


def _bars(task: Task, row: float, scale: float) -> Iterator[tuple[str, Box, str]]:
    """Fill, box and number of a pass; an F&B is two bars of half the height."""
    x, y = _LEFT + task.start * scale, _TOP + task.stage * row
    width, other = (task.end - task.start) * scale, task.backward
    if other is None:
        box = (x, y + 1, width, row - 2)
        yield _fill(task.kind, task.chunk), box, str(task.micro_batch)
        return
    half = (row - 2) / 2
    top, bottom = (x, y + 1, width, half), (x, y + 1 + half, width, half)
    yield _fill("F", task.chunk), top, str(task.micro_batch)
    yield _fill(other.kind, other.chunk), bottom, str(other.micro_batch)


def _fill(kind: str, chunk: int) -> str:
    return style.lighter(_FILLS[kind]) if chunk else _FILLS[kind]


def _fits(box: Box, number: str) -> bool:
    _, _, width, height = box
    return height >= _NUMBER_PT + 1 and width >= len(number) * 0.64 * _NUMBER_PT + 1


def _numbers(drawing: Drawing, bars: Sequence[tuple[Box, str]], ink: str) -> None:
    texts = [(x + w / 2, y + h / 2 + 2.7, number) for (x, y, w, h), number in bars]
    if texts:
        drawing.write_all(texts, size=_NUMBER_PT, align="center", colour=ink)


def _name(drawing: Drawing, stage: int, middle: float) -> None:
    drawing.write(_LEFT - 6, middle + 3.5, f"stage {stage}", size=9, align="right")


def _headings(drawing: Drawing, y: float) -> None:
    for x, text, align in (
        (_ROUND, "sends", "center"),
        (_NOW, "runs", "left"),
        (_SLOTS, "holds the activations of micro-batch", "left"),
        (468.0, "now", "right"),
        (_RIGHT, "at most", "right"),
    ):
        drawing.write(x, y, text, size=9, align=align, colour=style.GREY)


def _stage(drawing: Drawing, plan: Schedule, at: AtStage, stage: int, top: float) -> None:
    """The row of one stage: its pass, its slots, and how many are full."""
    middle = top + _HELD_ROW / 2
    _name(drawing, stage, middle)
    rows = plan.visits
    width = min(22.0, (_SLOTS_END - _SLOTS) / plan.micro_batches)
    height = (_HELD_ROW - 4) / rows
    slots = {
        Held(i, chunk): (_SLOTS + i * width, top + 2 + chunk * height, width, height)
        for i in range(plan.micro_batches)
        for chunk in range(rows)
    }
    drawing.boxes(slots.values(), style.WHITE, edge=style.PALE)
    for later in (False, True):
        full = [
            (slots[Held(one.micro_batch, min(one.chunk, rows - 1))], str(one.micro_batch))
            for one in at.held
            if (one.chunk > 0) == later
        ]
        fill = style.lighter(style.ACTIVATIONS) if later else style.ACTIVATIONS
        drawing.boxes([box for box, _ in full], fill)
        fitting = [(box, number) for box, number in full if _fits(box, number)]
        _numbers(drawing, fitting, style.ON_FILL)
    count = len(at.held) / rows
    drawing.write(468, middle + 3.5, f"{count:.3g}", align="right", bold=True)
    drawing.write(_RIGHT, middle + 3.5, f"{at.most:.3g}", align="right", colour=style.GREY)


def _running(drawing: Drawing, task: Task | None, top: float, idle: str) -> None:
    """What a stage does: a box with words, or two where forward and backward run together."""
    height, middle = _HELD_ROW - 6, top + _HELD_ROW / 2 + 3.2
    if task is None:
        parts = [(style.IDLE, idle)]
    elif task.backward is None:
        parts = [(_fill(task.kind, task.chunk), f"{_NAMES[task.kind]} {task.micro_batch}")]
    else:
        other = task.backward
        parts = [(_fill("F", task.chunk), f"F {task.micro_batch}")]
        parts += [(_fill(other.kind, other.chunk), f"{other.kind} {other.micro_batch}")]
    width = _RUNS / len(parts)
    for place, (fill, text) in enumerate(parts):
        x = _NOW + place * width
        edge = style.IDLE if task is None else style.INK
        drawing.boxes([(x, top + 3, width, height)], fill, edge=edge)
        drawing.write(x + width / 2, middle, text, size=9, align="center", colour=style.on(fill))


def _messages(drawing: Drawing, moment: Moment, top: float) -> None:
    """One arrow for all that goes from a stage to another, with the micro-batches at its side."""
    pairs: dict[tuple[int, int], list[str]] = {}
    for message in moment.sent:
        pair = message.sender, message.receiver
        pairs.setdefault(pair, []).append(str(message.micro_batch))
    for (sender, receiver), numbers in pairs.items():
        sign = 1 if receiver > sender else -1
        start, end = (top + (stage + 0.5) * _HELD_ROW for stage in (sender, receiver))
        start, end = start + 3 * sign, end - 3 * sign
        near = abs(receiver - sender) == 1  # otherwise from an end of the pipeline to the other
        x = (_DOWN if sign > 0 else _UP) if near else _ROUND
        head = [(x - 3, end - 5 * sign), (x, end), (x + 3, end - 5 * sign)]
        drawing.lines([[(x, start), (x, end)], head], style.MESSAGES, 1.8)
        middle = (start + end) / 2 if near else start + 6 * sign
        first = middle + 2.7 - 4.5 * (len(numbers) - 1)
        for line, number in enumerate(numbers):
            drawing.write(x - 4, first + 9 * line, number, size=_NUMBER_PT, align="right")
