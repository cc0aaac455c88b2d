"""The ring all-reduce, one step: what each rank holds of each part, and what is under way."""

from course_lib.figures.paper import style
from course_lib.figures.paper.arrow import arrow
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted
from course_lib.theory.network.all_reduce_steps import AllReduceSteps, Summands

_LEFT, _TOP, _ROW, _STRIP = 44.0, 58.0, 31.0, 11.0
_GAP = 30.0  # between two ranks, where the messages are drawn
_MOST_SPELLED = 5  # with more ranks "0+1+2" has no room


def ring_step(result: AllReduceSteps, step: int) -> Drawing:
    """Columns are ranks, rows are parts; a strip is filled where a rank's numbers are in the sum.

    Messages of this step lie between the columns; those of the last rank go round to the first.
    """
    moment, ranks = result.moments[step], result.ranks
    bottom = _TOP + _ROW * ranks
    drawing = Drawing(bottom + 42, ring_sentence(result, step))
    adding = any(message.adds for message in moment.sent)
    phase = "receivers add" if adding else "receivers copy" if step else "before the first step"
    drawing.title(f"step {step} of {result.steps}: {phase}")
    drawing.write(
        0, 28, "Each box: which ranks' numbers are in the sum so far.", 9, colour=style.GREY
    )
    pitch = (WIDTH_PT - _LEFT) / ranks
    width = pitch - _GAP
    lefts = [_LEFT + _GAP / 2 + rank * pitch for rank in range(ranks)]
    for rank, x in enumerate(lefts):
        drawing.write(x + width / 2, _TOP - 8, f"rank {rank}", 9, "center", bold=True)
    for part in range(ranks):
        drawing.write(0, _TOP + part * _ROW + 14, f"part {part}", 9)
    _cells(drawing, result, step, lefts, width)
    for message in moment.sent:
        y = _TOP + message.part * _ROW + _STRIP / 2
        x = lefts[message.sender] + width
        if message.receiver > message.sender:
            arrow(drawing, (x + 3, y), (x + _GAP - 3, y), style.MESSAGES, 2.5)
        else:  # from the last rank round to the first
            drawing.line([(x + 3, y), (WIDTH_PT, y)], style.MESSAGES, 2.5)
            arrow(drawing, (_LEFT - 12, y), (lefts[0] - 3, y), style.MESSAGES, 2.5)
    _sent(drawing, result, step, bottom)
    return drawing


def ring_sentence(result: AllReduceSteps, step: int) -> str:
    """The messages of this step and how much is complete, in words."""
    moment = result.moments[step]
    told = "; ".join(
        f"{one.sender} to {one.receiver} part {one.part} with {_spelled(one.summands, True)}"
        for one in moment.sent
    )
    complete = sum(part == result.complete for row in moment.held for part in row)
    return (
        f"Ring of {counted(result.ranks, 'rank')}, step {step} of {result.steps}: "
        f"{told or 'nothing is sent yet'}. {complete} of {result.ranks**2} boxes hold the whole "
        f"sum; each rank has sent {counted(result.sent_parts(0, step), 'part')}."
    )


def _cells(
    drawing: Drawing, result: AllReduceSteps, step: int, lefts: list[float], width: float
) -> None:
    moment = result.moments[step]
    came = {(message.receiver, message.part) for message in moment.sent}
    frames: list[Box] = []
    new: list[Box] = []
    fills: list[Box] = []
    whole: list[tuple[float, float, str]] = []
    partial: list[tuple[float, float, str]] = []
    for rank, row in enumerate(moment.held):
        for part, summands in enumerate(row):
            x, y = lefts[rank], _TOP + part * _ROW
            fills += _runs(summands, result.ranks, (x, y, width, _STRIP))
            (new if (rank, part) in came else frames).append((x, y, width, _STRIP))
            complete = summands == result.complete
            short = _spelled(summands, result.ranks <= _MOST_SPELLED)
            text = "whole sum" if complete and width > 46 else short
            (whole if complete else partial).append((x + width / 2, y + 21, text))
    size = 9 if width > 46 else 7.5
    drawing.boxes(fills, style.GRADIENTS, edge=style.GRADIENTS)
    drawing.boxes(frames, "none", edge=style.GREY)
    drawing.boxes([(x - 1, y - 1, w + 2, h + 2) for x, y, w, h in new], "none", edge=style.MESSAGES)
    drawing.boxes(new, "none", edge=style.MESSAGES)
    drawing.write_all(partial, size, "center", style.GREY)
    drawing.write_all(whole, size, "center", bold=True)


def _runs(summands: Summands, ranks: int, box: Box) -> list[Box]:
    """The slots of the ranks in a sum, neighbours in one piece."""
    x, y, width, height = box
    slot = width / ranks
    starts = [rank for rank in summands if rank - 1 not in summands]
    ends = [rank + 1 for rank in summands if rank + 1 not in summands]
    return [(x + a * slot, y, (b - a) * slot, height) for a, b in zip(starts, ends, strict=True)]


def _spelled(summands: Summands, long: bool) -> str:
    """ "0+1+2", or "012" where there is no room."""
    return ("+" if long else "").join(map(str, summands))


def _sent(drawing: Drawing, result: AllReduceSteps, step: int, bottom: float) -> None:
    """What a rank has sent so far, in parts, against all that it has to send."""
    sent, total = result.sent_parts(0, step), result.sent_parts(0, result.steps)
    y, width = bottom + 12, 240.0
    drawing.write(0, y + 10, "each rank has sent", 9)
    each = width / total
    drawing.boxes([(96 + place * each, y, each, 13) for place in range(sent)], style.MESSAGES)
    rest = [(96 + place * each, y, each, 13) for place in range(sent, total)]
    drawing.boxes(rest, style.WHITE, edge=style.GREY)
    told = f"{sent} of {total} parts = {sent / result.parts:.2f} × the tensor"
    drawing.write(104 + width, y + 10, told, 9)
