"""A checkpoint written by some ranks and read by others: who reads from whose file."""

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted

_LEFT, _RIGHT, _TOP, _HIGH = 66.0, WIDTH_PT - 8, 34.0, 30.0
_MOST = 4  # ranks


def resharded(total: int, writers: int, readers: int) -> Sheet:
    """The columns 0 … total - 1, cut by the writers above and by the readers below.

    Raises ValueError for more than 4 writers or readers, for fewer columns than either, and for
    more than 99.
    """
    if not (1 <= writers <= _MOST and 1 <= readers <= _MOST):
        raise ValueError(f"writers {writers} and readers {readers}: draw 1 to {_MOST} of each")
    if not max(writers, readers) <= total <= 99:
        raise ValueError(f"total {total} columns: give at least one to each rank, and at most 99")
    sheet = Sheet(_TOP + 2 * _HIGH + 66, _sentence(total, writers, readers))
    title = f"{counted(total, 'column')}: written by {counted(writers, 'rank')}, read by {readers}"
    sheet.title(title)
    scale = (_RIGHT - _LEFT) / total
    below = _TOP + _HIGH + 30
    for rank, (start, stop) in enumerate(_cuts(total, writers)):
        fill, hatch = style.SERIES[rank % len(style.SERIES)]
        sheet.boxes([(_LEFT + start * scale, _TOP, (stop - start) * scale, _HIGH)], fill, hatch)
        _name(sheet, _LEFT + (start + stop) / 2 * scale, _TOP + 20, f"{rank}: {start}–{stop - 1}")
    for reader, (low, high) in enumerate(_cuts(total, readers)):
        for writer, (start, stop) in enumerate(_cuts(total, writers)):
            first, last = max(start, low), min(stop, high)
            if first < last:
                fill, hatch = style.SERIES[writer % len(style.SERIES)]
                box = (_LEFT + first * scale, below, (last - first) * scale, _HIGH)
                sheet.boxes([box], fill, hatch)
        x, right = _LEFT + low * scale, _LEFT + high * scale
        sheet.line([(x, below - 5), (x, below + _HIGH + 5)], width=2.5)
        sheet.write(
            (x + right) / 2, below + _HIGH + 16, f"rank {reader}: {low}–{high - 1}", align="center"
        )
        if reader == readers - 1:
            sheet.line([(right, below - 5), (right, below + _HIGH + 5)], width=2.5)
    sheet.write(_LEFT - 8, _TOP + 20, "written", align="right")
    sheet.write(_LEFT - 8, below + 20, "read", align="right")
    return sheet


def _cuts(total: int, ranks: int) -> list[tuple[int, int]]:
    return [(total * rank // ranks, total * (rank + 1) // ranks) for rank in range(ranks)]


def _name(sheet: Sheet, x: float, y: float, text: str) -> None:
    width = 6.6 * len(text) + 6
    sheet.boxes([(x - width / 2, y - 12, width, 16)], style.WHITE, edge=style.WHITE)
    sheet.write(x, y, text, align="center")


def _sentence(total: int, writers: int, readers: int) -> str:
    parts = []
    for reader, (low, high) in enumerate(_cuts(total, readers)):
        files = [
            str(writer)
            for writer, (start, stop) in enumerate(_cuts(total, writers))
            if start < high and low < stop
        ]
        parts.append(
            f"rank {reader} of {readers} reads {low} to {high - 1} from {', '.join(files)}"
        )
    return f"{counted(total, 'column')} written by {counted(writers, 'rank')}: {'; '.join(parts)}."
