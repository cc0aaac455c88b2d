"""How micro-batches make the global batch, and how updates make an epoch."""

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import Box
from course_lib.figures.paper.text import counted, elide
from course_lib.theory.step.batching import Batching, Epoch

_HEIGHT_PT = 265
_MARGIN = 2
_LEFT = 74  # where the grid starts, to the right of the ranks' names
_RIGHT = 440
_TOP = 62
_GRID_HEIGHT = 114
_ROW = 22
_GAP = 3
_ROWS, _COLUMNS = 6, 8  # more ranks or micro-steps than this are elided
_STRIP_TOP = 206
_UPDATE_WIDTH = 34
_UPDATES_SHOWN = 9


def one_batch(batching: Batching) -> Drawing:
    """The first update as a grid of ranks × micro-steps, and below it the epoch as a strip."""
    epoch = batching.epoch()
    drawing = Drawing(_HEIGHT_PT, _sentence(batching, epoch))
    _grid(drawing, batching, epoch)
    _strip(drawing, batching, epoch)
    return drawing


def _sentence(batching: Batching, epoch: Epoch) -> str:
    return (
        f"One update: micro-batch {batching.micro_batch} × accumulation {batching.accumulation} × "
        f"dp {batching.dp} = global batch of {counted(batching.global_batch, 'sample')}. "
        f"One epoch of {counted(batching.samples, 'sample')}: "
        f"{counted(epoch.micro_steps, 'micro-step')} on each rank and "
        f"{counted(epoch.updates, 'update')}; {_tail(epoch)}."
    )


def _tail(epoch: Epoch) -> str:
    if epoch.dropped:
        return f"{counted(epoch.dropped, 'sample')} dropped"
    if epoch.repeated:
        return f"{counted(epoch.repeated, 'sample')} repeated"
    return "no sample repeated or dropped"


def _grid(drawing: Drawing, batching: Batching, epoch: Epoch) -> None:
    ranks, steps = elide(batching.dp, _ROWS), elide(batching.accumulation, _COLUMNS)
    width = min(90.0, (_RIGHT - _LEFT) / len(steps))
    height = min(48.0, _GRID_HEIGHT / len(ranks))
    title = (
        f"One update: micro-batch {batching.micro_batch} × accumulation {batching.accumulation}"
        f" × dp {batching.dp} = {counted(batching.global_batch, 'sample')}"
    )
    caption = (
        "Each cell: the samples of one forward + backward; "
        f"{counted(batching.tokens_per_batch, 'token')} in all."
    )
    drawing.title(title)
    drawing.write(0, 34, caption, colour=style.GREY)
    drawing.write(_LEFT - 8, 54, "micro-step", align="right", colour=style.GREY)
    for column, step in enumerate(steps):
        name = "…" if step is None else str(step + 1)
        drawing.write(_LEFT + (column + 0.5) * width, 54, name, align="center", colour=style.GREY)
    for row, rank in enumerate(ranks):
        name = "…" if rank is None else f"dp rank {rank}"
        drawing.write(_LEFT - 8, _TOP + (row + 0.5) * height + 3, name, align="right")
    cells = [
        (step, (_LEFT + column * width, _TOP + row * height, width - _GAP, height - _GAP))
        for row, rank in enumerate(ranks)
        for column, step in enumerate(steps)
        if rank is not None and step is not None
    ]
    _cells(drawing, batching, epoch, cells)
    _update_bar(drawing, _LEFT + len(steps) * width, len(ranks) * height - _GAP, batching.dp)


def _cells(
    drawing: Drawing, batching: Batching, epoch: Epoch, cells: list[tuple[int, Box]]
) -> None:
    """Full cells, the short last micro-batch, and empty cells if the data end early."""
    ends_here = epoch.updates == 1
    filled = epoch.last_window if ends_here else batching.accumulation
    ragged = ends_here and epoch.last_micro_batch < batching.micro_batch
    short = [box for step, box in cells if ragged and step == filled - 1]
    whole = [box for step, box in cells if step < filled and box not in short]
    empty = [box for step, box in cells if step >= filled]
    drawing.boxes(empty, style.WHITE, edge=style.GREY, dashed=True)
    for boxes, fill, samples in (
        (whole, style.COMPUTING, batching.micro_batch),
        (short, style.PALE, epoch.last_micro_batch),
    ):
        drawing.boxes(boxes, fill)
        for x, y, width, height in boxes:
            middle = x + width / 2, y + height / 2 + 4
            drawing.write(*middle, str(samples), align="center", colour=style.on(fill))


def _update_bar(drawing: Drawing, x: float, height: float, dp: int) -> None:
    middle = _TOP + height / 2
    if dp == 1:  # no other rank to exchange gradients with
        drawing.boxes([(x + 3, _TOP, 12, height)], style.UPDATE)
        drawing.write(x + 20, middle + 4, "update")
        return
    drawing.boxes([(x + 3, _TOP, 6, height)], style.MESSAGES)
    drawing.boxes([(x + 9, _TOP, 6, height)], style.UPDATE)
    drawing.write(x + 20, middle - 2, "all-reduce")
    drawing.write(x + 20, middle + 11, "+ update")


def _strip(drawing: Drawing, batching: Batching, epoch: Epoch) -> None:
    """The updates of the epoch; the last one as wide as it is full, then what is dropped."""
    drawing.write(
        0,
        _STRIP_TOP - 10,
        f"One epoch of {counted(batching.samples, 'sample')}: {counted(epoch.updates, 'update')}",
        size=style.TITLE_PT,
        bold=True,
    )
    updates, fulls, x = elide(epoch.updates, _UPDATES_SHOWN), [], float(_MARGIN)
    for update in updates:
        name = "…" if update is None else f"{update + 1:,}"
        centre = x + (_UPDATE_WIDTH - _GAP) / 2
        drawing.write(centre, _STRIP_TOP + 32, name, align="center", colour=style.GREY)
        if update is not None and update < epoch.updates - 1:
            fulls.append((x, _STRIP_TOP, _UPDATE_WIDTH - _GAP, _ROW - _GAP))
        x += _UPDATE_WIDTH
    drawing.boxes(fulls, style.COMPUTING)
    _last_update(drawing, batching, epoch, x - _UPDATE_WIDTH)
    _tail_box(drawing, epoch, x)


def _last_update(drawing: Drawing, batching: Batching, epoch: Epoch, x: float) -> None:
    width, height = _UPDATE_WIDTH - _GAP, _ROW - _GAP
    share = epoch.last_window / batching.accumulation
    short = epoch.last_micro_batch < batching.micro_batch
    if share < 1:
        drawing.boxes([(x, _STRIP_TOP, width, height)], style.WHITE, edge=style.GREY, dashed=True)
    ragged = short or share < 1
    fill = style.PALE if ragged else style.COMPUTING
    drawing.boxes([(x, _STRIP_TOP, width * share, height)], fill)
    if ragged:
        drawing.write(
            0,
            _STRIP_TOP + 49,
            f"Last update: {epoch.last_window} of {counted(batching.accumulation, 'micro-step')},"
            f" the last micro-batch {epoch.last_micro_batch} of"
            f" {counted(batching.micro_batch, 'sample')}.",
        )


def _tail_box(drawing: Drawing, epoch: Epoch, x: float) -> None:
    """A box with its number for samples that are dropped or seen twice."""
    if not (epoch.dropped or epoch.repeated):
        return
    fill = style.WARNING if epoch.dropped else style.PALE
    drawing.boxes([(x + 8, _STRIP_TOP, 16, _ROW - _GAP)], fill, None if epoch.dropped else "//")
    drawing.write(x + 30, _STRIP_TOP + 14, _tail(epoch))
