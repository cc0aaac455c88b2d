"""Tokens on their way to experts and back, one stage: who sends how many to whom."""

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.network.expert_steps import ExpertExchange, Stage

_LEFT, _TOP, _ROW = 92.0, 62.0, 24.0
_RETURNED = 84.0  # width of the column of results, at the right
_QUEUE = 84.0  # height of the experts' queues
_TITLES = {
    "chosen": "every token has chosen its experts",
    "accepted": "each expert accepts up to its capacity",
    "dispatch": "dispatch",
    "compute": "every rank's experts compute",
    "combine": "combine",
    "summed": "every token adds up its results",
}


def experts_step(result: ExpertExchange, step: int) -> Drawing:
    """Above: a table of choices, from ranks (rows) to experts (columns). Below: experts' queues.

    What travels in this stage is green, what an expert has is blue, what is dropped is red.
    """
    stage = result.stages[step]
    bottom = _TOP + _ROW * result.ranks
    drawing = Drawing(bottom + _QUEUE + 64, experts_sentence(result, step))
    title = _TITLES[stage.name]
    if stage.name in ("dispatch", "combine"):
        title += f", turn {stage.turn + 1} of {result.ranks}: " + _way(stage)
    drawing.title(title)
    drawing.write(_LEFT, 32, "rows of tokens for each expert", 9, colour=style.GREY)
    drawing.write(WIDTH_PT, 32, "results back", 9, "right", style.GREY)
    wide = (WIDTH_PT - _RETURNED - _LEFT) / len(result.counts[0])
    for expert in range(len(result.counts[0])):
        x = _LEFT + (expert + 0.5) * wide
        drawing.write(x, _TOP - 8, f"e{expert}", 9, "center", bold=True)
    _table(drawing, result, stage, wide)
    _queues(drawing, result, stage, wide, bottom + 14)
    return drawing


def experts_sentence(result: ExpertExchange, step: int) -> str:
    """This stage, and who works how much, in words."""
    stage = result.stages[step]
    turn = f", turn {stage.turn + 1} of {result.ranks}" if stage.name in _MOVING else ""
    received = ", ".join(map(str, result.received))
    return (
        f"Stage {step + 1} of {len(result.stages)}, {_TITLES[stage.name]}{turn}: "
        f"{counted(result.ranks, 'rank')} with {len(result.counts[0])} experts; their experts get "
        f"{received} rows, {result.dropped} choices are dropped."
    )


_MOVING = ("dispatch", "combine")


def _way(stage: Stage) -> str:
    if not stage.turn:
        return "what stays at home"
    if stage.name == "dispatch":
        return "to the next rank" if stage.turn == 1 else f"to the rank {stage.turn} places on"
    far = "the rank before" if stage.turn == 1 else f"the rank {stage.turn} places before"
    return f"back from {far}"


def _arrived(result: ExpertExchange, stage: Stage) -> int:
    """How many turns of the dispatch are over or under way."""
    if stage.name in ("chosen", "accepted"):
        return 0
    return stage.turn + 1 if stage.name == "dispatch" else result.ranks


def _returned(result: ExpertExchange, stage: Stage) -> int:
    """How many turns of the combine are over or under way."""
    if stage.name == "summed":
        return result.ranks
    return stage.turn + 1 if stage.name == "combine" else 0


def _table(drawing: Drawing, result: ExpertExchange, stage: Stage, wide: float) -> None:
    waiting: list[Box] = []
    moving: list[Box] = []
    away: list[Box] = []
    lost: list[tuple[float, float, str]] = []
    on_fill: list[tuple[float, float, str]] = []
    plain: list[tuple[float, float, str]] = []
    cut = stage.name != "chosen"
    for rank, row in enumerate(result.counts):
        y = _TOP + rank * _ROW
        drawing.write(0, y + 14, f"rank {rank}", 9)
        drawing.write(_LEFT - 8, y + 14, "tokens", 9, "right", style.GREY)
        for expert, choices in enumerate(row):
            kept = result.kept[rank][expert] if cut else choices
            box = (_LEFT + expert * wide + 1, y, wide - 2, _ROW - 4)
            now = stage.name in _MOVING and stage.turn == result.turn(stage.name, rank, expert)
            gone = result.turn("dispatch", rank, expert) < _arrived(result, stage)
            (moving if now else away if gone else waiting).append(box)
            middle = box[0] + (box[2] - 20 * (choices > kept)) / 2
            (on_fill if now or not gone else plain).append((middle, y + 13, str(kept)))
            if choices > kept:
                lost.append((box[0] + box[2] - 20, y, f"−{choices - kept}"))
        back = sum(
            kept
            for expert, kept in enumerate(result.kept[rank])
            if result.turn("combine", rank, expert) < _returned(result, stage)
        )
        total = sum(row)
        x, long = WIDTH_PT - _RETURNED + 8, _RETURNED - 9
        drawing.boxes([(x, y + 14, long, 6)], style.WHITE, edge=style.GREY)
        drawing.boxes([(x, y + 14, long * back / total, 6)] if back else [], style.ACTIVATIONS)
        drawing.write(x + long, y + 10, f"{back} of {total}", 9, "right")
    drawing.boxes(waiting, style.ACTIVATIONS, edge=style.GREY)
    drawing.boxes(away, style.WHITE, edge=style.GREY)
    drawing.boxes(moving, style.MESSAGES)
    drawing.write_all(on_fill, 9, "center", style.ON_FILL)
    drawing.write_all(plain, 9, "center", style.GREY)
    drawing.boxes([(x, y, 20, _ROW - 4) for x, y, _ in lost], style.WARNING, edge=style.GREY)
    told = [(x + 10, y + 13, text) for x, y, text in lost]
    drawing.write_all(told, 7.5, "center", style.ON_FILL)


def _queues(
    drawing: Drawing, result: ExpertExchange, stage: Stage, wide: float, top: float
) -> None:
    """What each expert has received so far, its capacity, and how long its rank computes."""
    bottom, own = top + _QUEUE, result.experts_of_a_rank
    loads = [sum(column) for column in zip(*result.counts, strict=True)]
    limit = min(result.capacity, max(loads))
    scale = (_QUEUE - 4) / max(max(loads), limit)
    turns = _arrived(result, stage)
    numbers: list[tuple[float, float, str]] = []
    filled: list[Box] = []
    wanted: list[Box] = []
    for expert, load in enumerate(loads):
        x = _LEFT + expert * wide + 4
        came = sum(
            result.kept[rank][expert]
            for rank in range(result.ranks)
            if result.turn("dispatch", rank, expert) < turns
        )
        wanted.append((x, bottom - load * scale, wide - 8, load * scale))
        if came:
            filled.append((x, bottom - came * scale, wide - 8, came * scale))
        shown = came if turns else load
        numbers.append((x + wide / 2 - 4, bottom + 11, str(shown)))
    drawing.boxes(wanted, "none", edge=style.GREY, dashed=True)
    drawing.boxes(filled, style.FORWARD)
    drawing.write_all(numbers, 9, "center")
    drawing.write(0, top + 12, "experts'", 9)
    drawing.write(0, top + 24, "queues", 9)
    right = WIDTH_PT - _RETURNED
    if result.capacity < max(loads) or result.dropped:
        y = bottom - limit * scale
        drawing.line([(_LEFT, y), (right, y)], style.WARNING, 1.2, dashed=True)
        drawing.write(right + 8, y + 3, f"capacity {result.capacity}", 9)
    drawing.line([(_LEFT, bottom), (right, bottom)], style.GREY)
    busiest = max(result.received)
    for rank, rows in enumerate(result.received):
        x, span = _LEFT + rank * own * wide + 2, own * wide - 4
        done = stage.name in ("compute", "combine", "summed")
        drawing.boxes([(x, bottom + 18, span, 12)], style.IDLE, edge=style.GREY)
        drawing.boxes([(x, bottom + 18, span * rows / busiest, 12)] if done else [], style.FORWARD)
        text = f"rank {rank}: {rows} rows" if done and span > 70 else f"rank {rank}"
        drawing.write(x + span / 2, bottom + 42, text, 9, "center")
    drawing.write(0, bottom + 28, "time to compute", 9)
    if stage.name in ("compute", "combine", "summed"):
        mean = sum(result.received) / result.ranks
        drawing.write(right + 8, bottom + 28, f"{busiest / mean:.2f} × mean", 9)
