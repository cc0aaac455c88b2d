"""How micro-batches make the global batch, and how updates make an epoch."""

from course_lib.figures import style
from course_lib.figures.sheet import WIDTH_PT, Sheet
from course_lib.theory.batching import Batching, Epoch

_HEIGHT_PT = 285
_LEFT = 74  # where the grid begins, right of the ranks' names
_RIGHT = 440
_TOP = 62
_ROW = 22
_GAP = 3
_ROWS, _COLUMNS = 6, 8  # more ranks or micro-steps than this are elided
_STRIP_TOP = 226
_UPDATE_WIDTH = 34
_UPDATES_SHOWN = 9


def one_batch(batching: Batching) -> Sheet:
    """The first update as a grid of ranks × micro-steps, and below it the epoch as a strip."""
    epoch = batching.epoch()
    sheet = Sheet(_HEIGHT_PT, _sentence(batching, epoch))
    _grid(sheet, batching, epoch)
    _strip(sheet, batching, epoch)
    return sheet


def elide(count: int, most: int) -> list[int | None]:
    """0 … count-1, at most `most` entries: None stands for those left out."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def _sentence(batching: Batching, epoch: Epoch) -> str:
    return (
        f"One update: micro-batch {batching.micro_batch} × accumulation {batching.accumulation} × "
        f"dp {batching.dp} = global batch of {batching.global_batch} samples. "
        f"One epoch of {batching.samples} samples: {_count(epoch.micro_steps, 'micro-step')}"
        f" on each rank and {_count(epoch.updates, 'update')}; {_tail(epoch)}."
    )


def _tail(epoch: Epoch) -> str:
    if epoch.dropped:
        return f"{_count(epoch.dropped, 'sample')} dropped"
    if epoch.repeated:
        return f"{_count(epoch.repeated, 'sample')} repeated"
    return "no sample repeated or dropped"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _grid(sheet: Sheet, batching: Batching, epoch: Epoch) -> None:
    ranks, steps = elide(batching.dp, _ROWS), elide(batching.accumulation, _COLUMNS)
    width = min(90.0, (_RIGHT - _LEFT) / len(steps))
    sheet.write(
        0,
        13,
        f"One update: micro-batch {batching.micro_batch} × accumulation {batching.accumulation}"
        f" × dp {batching.dp} = {batching.global_batch:,} samples",
        size=style.TITLE_PT,
        bold=True,
    )
    sheet.write(0, 34, "Each cell: the samples of one forward + backward.", colour=style.GREY)
    sheet.write(_LEFT - 8, 54, "micro-step", align="right", colour=style.GREY)
    for column, step in enumerate(steps):
        _heading(sheet, _LEFT + (column + 0.5) * width, 54, step)
    for row, rank in enumerate(ranks):
        name = "…" if rank is None else f"dp rank {rank}"
        sheet.write(_LEFT - 8, _TOP + row * _ROW + 14, name, align="right")
    _cells(sheet, batching, epoch, ranks, steps, width)
    _update_bar(sheet, _LEFT + len(steps) * width, len(ranks))


def _heading(sheet: Sheet, x: float, y: float, step: int | None) -> None:
    sheet.write(x, y, "…" if step is None else str(step + 1), align="center", colour=style.GREY)


def _cells(
    sheet: Sheet,
    batching: Batching,
    epoch: Epoch,
    ranks: list[int | None],
    steps: list[int | None],
    width: float,
) -> None:
    """Full cells, the last short micro-batch, and empty cells when the data end before."""
    whole, short, empty = [], [], []
    only = epoch.updates == 1
    filled = epoch.last_window if only else batching.accumulation
    for row, rank in enumerate(ranks):
        for column, step in enumerate(steps):
            if rank is None or step is None:
                continue
            box = (_LEFT + column * width, _TOP + row * _ROW, width - _GAP, _ROW - _GAP)
            is_short = only and step == filled - 1 and epoch.last_micro_batch < batching.micro_batch
            (empty if step >= filled else short if is_short else whole).append(box)
    sheet.boxes(whole, style.SKY)
    sheet.boxes(short, style.YELLOW, "xxx")
    sheet.boxes(empty, style.WHITE, edge=style.GREY, dashed=True)
    for boxes, samples in ((whole, batching.micro_batch), (short, epoch.last_micro_batch)):
        for x, y, box_width, height in boxes:
            sheet.write(x + box_width / 2, y + height - 5, str(samples), align="center")


def _update_bar(sheet: Sheet, x: float, rows: int) -> None:
    sheet.boxes([(x + 3, _TOP, 12, rows * _ROW - _GAP)], style.ORANGE, "///")
    middle = _TOP + (rows * _ROW - _GAP) / 2
    sheet.write(x + 20, middle - 2, "all-reduce")
    sheet.write(x + 20, middle + 11, "+ update")


def _strip(sheet: Sheet, batching: Batching, epoch: Epoch) -> None:
    """The updates of the epoch; the last one as wide as it is full, then what is dropped."""
    sheet.write(
        0,
        _STRIP_TOP - 10,
        f"One epoch of {batching.samples:,} samples: {_count(epoch.updates, 'update')}",
        size=style.TITLE_PT,
        bold=True,
    )
    updates, fulls, x = elide(epoch.updates, _UPDATES_SHOWN), [], 0.0
    for update in updates:
        centre = x + _UPDATE_WIDTH / 2 - _GAP / 2
        sheet.write(centre, _STRIP_TOP + 32, "…" if update is None else f"{update + 1:,}",
                    align="center", colour=style.GREY)  # fmt: skip
        if update is not None and update < epoch.updates - 1:
            fulls.append((x, _STRIP_TOP, _UPDATE_WIDTH - _GAP, _ROW - _GAP))
        x += _UPDATE_WIDTH
    sheet.boxes(fulls, style.SKY)
    _last_update(sheet, batching, epoch, x - _UPDATE_WIDTH)
    _tail_box(sheet, epoch, x)


def _last_update(sheet: Sheet, batching: Batching, epoch: Epoch, x: float) -> None:
    width, height = _UPDATE_WIDTH - _GAP, _ROW - _GAP
    share = epoch.last_window / batching.accumulation
    short = epoch.last_micro_batch < batching.micro_batch
    if share < 1:
        sheet.boxes([(x, _STRIP_TOP, width, height)], style.WHITE, edge=style.GREY, dashed=True)
    ragged = short or share < 1
    look = (style.YELLOW, "xxx") if ragged else (style.SKY, None)
    sheet.boxes([(x, _STRIP_TOP, width * share, height)], *look)
    if ragged:
        sheet.write(
            0,
            _STRIP_TOP + 49,
            f"Last update: {epoch.last_window} of {_count(batching.accumulation, 'micro-step')},"
            f" the last micro-batch {epoch.last_micro_batch} of"
            f" {_count(batching.micro_batch, 'sample')}.",
        )


def _tail_box(sheet: Sheet, epoch: Epoch, x: float) -> None:
    """A hatched box with its number for samples that are dropped or seen twice."""
    if not (epoch.dropped or epoch.repeated):
        return
    look = (style.PALE, "\\\\\\") if epoch.dropped else (style.ORANGE, "///")
    sheet.boxes([(x + 8, _STRIP_TOP, 16, _ROW - _GAP)], *look)
    sheet.write(x + 30, _STRIP_TOP + 14, _tail(epoch))
