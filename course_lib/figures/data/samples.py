"""Which samples each rank saw."""

from collections.abc import Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted, elide

_LEFT = 62
_ROW = 22
_GAP = 2
_EPOCH_HEAD = 34
_COLUMNS = 16
_ROWS = 8


def samples_by_rank(epochs: Sequence[Sequence[Sequence[int]]]) -> Sheet:
    """For each epoch, a row per rank with the sample indices in the order it saw them.

    `epochs[e][r]` are the indices of rank r in epoch e. A sample that was seen before in its
    epoch stands in brackets. Raises ValueError when there is no epoch or no rank.
    """
    if not epochs or not all(epochs):
        raise ValueError("epochs must hold at least one rank each: give epochs[epoch][rank]")
    heights = [_EPOCH_HEAD + _ROW * min(len(ranks), _ROWS) for ranks in epochs]
    sheet = Sheet(sum(heights) + 6, _sentence(epochs))
    top = 0.0
    for number, (ranks, height) in enumerate(zip(epochs, heights, strict=True)):
        same = number > 0 and list(map(list, ranks)) == list(map(list, epochs[number - 1]))
        note = ": the same order as the epoch before" if same else ""
        sheet.write(0, top + 18, f"Epoch {number}{note}", size=style.TITLE_PT, bold=True)
        _epoch(sheet, ranks, top + _EPOCH_HEAD - 6)
        top += height
    return sheet


def _sentence(epochs: Sequence[Sequence[Sequence[int]]]) -> str:
    parts = []
    for number, ranks in enumerate(epochs):
        seen = [index for rank in ranks for index in rank]
        each = ", ".join(
            f"rank {r} saw {counted(len(rank), 'sample')}" for r, rank in enumerate(ranks[:_ROWS])
        )
        more = ", …" if len(ranks) > _ROWS else ""
        twice = len(seen) - len(set(seen))
        parts.append(f"Epoch {number}: {each}{more}; {counted(twice, 'sample')} seen again.")
    return " ".join(parts)


def _epoch(sheet: Sheet, ranks: Sequence[Sequence[int]], top: float) -> None:
    columns = elide(max(map(len, ranks)), _COLUMNS)
    width = min(44.0, (WIDTH_PT - _LEFT) / max(1, len(columns)))
    repeated = _repeats(ranks)
    for row, rank in enumerate(elide(len(ranks), _ROWS)):
        y = top + row * _ROW
        sheet.write(_LEFT - 8, y + 14, "…" if rank is None else f"rank {rank}", align="right")
        if rank is not None:
            _rank(sheet, ranks[rank], columns, width, y, repeated[rank])


def _rank(
    sheet: Sheet,
    indices: Sequence[int],
    columns: list[int | None],
    width: float,
    y: float,
    repeated: set[int],
) -> None:
    first: list[Box] = []
    again: list[Box] = []
    for column, place in enumerate(columns):
        x = _LEFT + column * width
        if place is not None and place >= len(indices):
            continue
        ink = style.INK
        if place is None:
            text = "…"
        elif place in repeated:
            text = f"({indices[place]})"
            again.append((x, y, width - _GAP, _ROW - _GAP))
        else:
            text, ink = str(indices[place]), style.ON_FILL
            first.append((x, y, width - _GAP, _ROW - _GAP))
        sheet.write(x + (width - _GAP) / 2, y + 14, text, align="center", colour=ink)
    sheet.boxes(first, style.COMPUTING)
    sheet.boxes(again, style.PALE)


def _repeats(ranks: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each rank the places of samples that came before in the epoch, on any rank.

    Ranks work side by side, so place 0 of every rank comes before place 1 of any.
    """
    seen: set[int] = set()
    places: list[set[int]] = [set() for _ in ranks]
    for place in range(max(map(len, ranks))):
        for rank, indices in enumerate(ranks):
            if place < len(indices):
                if indices[place] in seen:
                    places[rank].add(place)
                seen.add(indices[place])
    return places
