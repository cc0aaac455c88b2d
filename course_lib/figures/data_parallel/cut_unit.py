"""How a unit is cut over ranks: its tensors lie behind one another in one vector."""

from collections.abc import Iterator, Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted
from course_lib.theory.network.zero import shard

_LEFT, _TOP, _ROW, _CELL = 66.0, 52.0, 26.0, 18.0
_GAP = 12.0  # between two ranks
_MOST, _MOST_RANKS = 24, 8  # numbers, padding included
Tensors = Mapping[str, int]


def cut_unit(tensors: Tensors, ranks: int) -> Sheet:
    """`tensors` (name: numbers) behind one another, filled up with zeros and cut into equal parts.

    Above: the vector. Below: what each rank keeps. Raises ValueError for no tensor, for more than
    24 numbers with the padding, and for more than 8 ranks.
    """
    numbers = sum(tensors.values())
    if not tensors or min(tensors.values()) < 1:
        raise ValueError("tensors must hold at least one, of at least one number each")
    parts = [shard(numbers, ranks, rank) for rank in range(ranks)]
    size = -(-numbers // ranks)
    if size * ranks > _MOST or ranks > _MOST_RANKS:
        raise ValueError(
            f"{size} numbers × {ranks} ranks: draw at most {_MOST} numbers on {_MOST_RANKS} ranks"
        )
    padding = sum(part.zeros for part in parts)
    sheet = Sheet(_TOP + 4 * _ROW + 46, _sentence(tensors, ranks, size, padding))
    title = f"A unit of {numbers} numbers, cut over {counted(ranks, 'rank')}"
    sheet.title(title)
    cell = min(_CELL, (WIDTH_PT - _LEFT - 6 - _GAP * (ranks - 1)) / (size * ranks))
    owners = [*_owners(tensors), *[None] * padding]
    below = _TOP + 2 * _ROW + 12
    for owner in dict.fromkeys(owners):
        places = [place for place, other in enumerate(owners) if other == owner]
        boxes = [(_LEFT + place * cell, _TOP, cell, _CELL) for place in places]
        boxes += [
            (x + place // size * _GAP, below, width, height)
            for place, (x, _, width, height) in zip(places, boxes, strict=True)
        ]
        _numbers(sheet, boxes, owner)
    for rank in range(ranks):
        x = _LEFT + rank * (size * cell + _GAP)
        sheet.write(x + size * cell / 2, below + 34, str(rank), align="center")
        cut = _LEFT + rank * size * cell
        if rank:
            sheet.line([(cut, _TOP - 6), (cut, _TOP + _CELL + 6)], width=2.5)
        middle = cut + size * cell / 2
        sheet.line([(middle, _TOP + _CELL + 8), (x + size * cell / 2, below - 4)], style.GREY)
    sheet.write(_LEFT - 8, _TOP + 13, "the vector", align="right")
    sheet.write(_LEFT - 8, below + 13, "kept", align="right")
    sheet.write(_LEFT - 8, below + 34, "by rank", align="right")
    _key(sheet, list(tensors), padding, below + 56)
    return sheet


def _owners(tensors: Tensors) -> Iterator[int]:
    """For each number of the vector the place of its tensor."""
    for place, count in enumerate(tensors.values()):
        yield from [place] * count


def _numbers(sheet: Sheet, boxes: list[Box], owner: int | None) -> None:
    """A box for each number of one tensor; None is the padding."""
    if owner is not None:
        sheet.boxes(boxes, *style.SERIES[owner % len(style.SERIES)])
        return
    sheet.boxes(boxes, style.WHITE, dashed=True)
    for x, y, width, _ in boxes:
        sheet.write(x + width / 2, y + 13, "0", size=9, align="center")


def _key(sheet: Sheet, names: list[str], padding: int, y: float) -> None:
    x = _LEFT
    for place, name in enumerate(names):
        sheet.boxes([(x, y, 14, 12)], *style.SERIES[place % len(style.SERIES)])
        sheet.write(x + 20, y + 10, name)
        x += 44 + 6 * len(name)
    if padding:
        sheet.boxes([(x, y, 14, 12)], style.WHITE, dashed=True)
        sheet.write(x + 20, y + 10, "padding")


def _sentence(tensors: Tensors, ranks: int, size: int, padding: int) -> str:
    words = ", ".join(f"{count} of {name}" for name, count in tensors.items())
    return (
        f"One vector of {sum(tensors.values())} numbers ({words}) and {padding} of padding, "
        f"cut into {counted(ranks, 'part')} of {size}."
    )
