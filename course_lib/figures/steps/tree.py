"""The tree all-reduce, one step: messages down the page in time, and the ring's time beside it."""

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_bytes, format_seconds
from course_lib.theory.network.all_reduce_steps import AllReduceSteps
from course_lib.theory.network.ring_or_tree import RingOrTree

_LEFT, _TOP, _ROW, _STRIP = 62.0, 54.0, 30.0, 8.0
_BARS = 44.0  # where the two strips of time begin


def tree_step(result: AllReduceSteps, times: RingOrTree, step: int) -> Drawing:
    """Columns are ranks, rows are steps; strips say whose numbers are in a rank's sum.

    Below: tree and ring on one scale of time, each step a box, filled as far as time has gone.
    """
    bottom = _TOP + _ROW * result.steps + 22
    drawing = Drawing(bottom + 84, tree_sentence(result, times, step))
    half = result.steps // 2
    phase = "before the first step"
    if step:
        phase = "sums go up to rank 0" if step <= half else "the whole sum comes down"
    drawing.title(f"step {step} of {result.steps}: {phase}")
    pitch = (WIDTH_PT - _LEFT) / result.ranks
    centres = [_LEFT + (rank + 0.5) * pitch for rank in range(result.ranks)]
    names = [(x, 34.0, f"rank {r}" if pitch > 38 else str(r)) for r, x in enumerate(centres)]
    drawing.write_all(names, 9, "center", bold=True)
    width = min(pitch - 8, 48)
    for row in range(step + 1):
        _states(drawing, result, row, centres, width, now=row == step)
    for row in range(1, result.steps + 1):
        y = _TOP + _ROW * row - 9
        colour = style.INK if row <= step else style.GREY
        drawing.write(0, y, f"step {row}", 9, colour=colour, bold=row == step)
        for message in result.moments[row].sent if row <= step else ():
            start, end = centres[message.sender], centres[message.receiver]
            look = style.MESSAGES if row == step else style.GREY
            ends = (start, y - 26), (end, y - 6)
            arrow(drawing, *ends, look, 2.5 if row == step else 1)
    _times(drawing, result, times, step, bottom)
    return drawing


def tree_sentence(result: AllReduceSteps, times: RingOrTree, step: int) -> str:
    """The messages of this step, and both times, in words."""
    tree_s = times.tree_s or 0.0
    told = ", ".join(f"{one.sender} to {one.receiver}" for one in result.moments[step].sent)
    return (
        f"Tree of {counted(result.ranks, 'rank')}, step {step} of {result.steps}: "
        f"{told or 'nothing is sent yet'}. For {format_bytes(times.size_bytes)} it takes "
        f"{format_seconds(tree_s)}, a ring of {counted(times.ring_steps, 'step')} "
        f"{format_seconds(times.ring_s)}."
    )


def _states(
    drawing: Drawing,
    result: AllReduceSteps,
    row: int,
    centres: list[float],
    width: float,
    now: bool,
) -> None:
    y, slot = _TOP + _ROW * row - 14, width / result.ranks
    held = [row[0] for row in result.moments[row].held]
    fills = [
        (x - width / 2 + rank * slot, y, slot, _STRIP)
        for x, summands in zip(centres, held, strict=True)
        for rank in summands
    ]
    merged: list[Box] = []
    for x, top, wide, high in fills:
        if merged and abs(merged[-1][0] + merged[-1][2] - x) < 0.01 * wide:
            x, wide = merged[-1][0], merged.pop()[2] + wide
        merged.append((x, top, wide, high))
    frames = [(x - width / 2, y, width, _STRIP) for x in centres]
    drawing.boxes(merged, style.GRADIENTS if now else style.PALE, edge="none")
    drawing.boxes(frames, "none", edge=style.INK if now else style.GREY)


def _times(
    drawing: Drawing, result: AllReduceSteps, times: RingOrTree, step: int, bottom: float
) -> None:
    tree_s = times.tree_s or 0.0
    scale = (WIDTH_PT - _BARS - 96) / max(tree_s, times.ring_s)
    now = tree_s * step / result.steps
    head = f"time for {format_bytes(times.size_bytes)}, each step a box"
    drawing.write(0, bottom + 8, head, 9, colour=style.GREY)
    rows = (("tree", tree_s, result.steps), ("ring", times.ring_s, times.ring_steps))
    for place, (name, seconds, count) in enumerate(rows):
        y, each = bottom + 18 + 24 * place, seconds * scale / count
        done = min(count, int(now / (seconds / count) + 1e-9))
        drawing.write(0, y + 11, name, 9, bold=True)
        drawing.boxes([(_BARS + i * each, y, each, 14) for i in range(done)], style.MESSAGES)
        rest = [(_BARS + i * each, y, each, 14) for i in range(done, count)]
        drawing.boxes(rest, style.WHITE, edge=style.GREY)
        told = f"{count} steps, {format_seconds(seconds)}"
        drawing.write(WIDTH_PT, y + 11, told, 9, "right")
    x = _BARS + now * scale
    drawing.line([(x, bottom + 13), (x, bottom + 61)], width=1.6)
    drawing.write(max(x, 12), bottom + 73, "now", 9, "center")
