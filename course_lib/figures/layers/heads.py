"""Which GPU has which heads of attention, and which of them are copies."""

from collections.abc import Mapping, Sequence

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT, Box
from course_lib.figures.paper.text import counted

_LEFT, _TOP, _STRIP = 84.0, 8.0, 82.0
_GAP, _QUERY, _KEY = 5.0, 14.0, 18.0  # between GPUs; heights of the boxes
_MOST = 16
Heads = tuple[Sequence[int], Sequence[int]]  # of queries, of keys and values


def heads_by_gpu(cuts: Mapping[str, Sequence[Heads]]) -> Drawing:
    """A strip for each way to cut: {"t = 8": [(query heads, key-value heads) of GPU 0, …]}.

    A key-value head that an earlier GPU has as well is hatched. Raises ValueError for no GPU or
    more than 16, and for a GPU without heads.
    """
    if not cuts or not all(0 < len(gpus) <= _MOST for gpus in cuts.values()):
        raise ValueError(f"cuts must hold 1 to {_MOST} GPUs each: give {{name: [heads of each]}}")
    if not all(queries and keys for gpus in cuts.values() for queries, keys in gpus):
        raise ValueError("a GPU has no heads: give each at least one of queries and one of keys")
    drawing = Drawing(_TOP + _STRIP * len(cuts) + 16, _sentence(cuts))
    for place, (name, gpus) in enumerate(cuts.items()):
        _strip(drawing, _TOP + place * _STRIP, name, gpus)
    y = _TOP + _STRIP * len(cuts) + 2
    drawing.boxes([(_LEFT, y, 14, 11)], style.WEIGHTS)
    drawing.write(_LEFT + 20, y + 10, "a head's own weights", size=9)
    drawing.boxes([(_LEFT + 170, y, 14, 11)], style.WARNING, "/")
    drawing.write(_LEFT + 190, y + 10, "a copy of the head on the GPU before", size=9)
    return drawing


def _strip(drawing: Drawing, top: float, name: str, gpus: Sequence[Heads]) -> None:
    width = (WIDTH_PT - _LEFT - 4 + _GAP) / len(gpus) - _GAP
    drawing.write(0, top + 12, name, bold=True)
    for row, what in ((18, "GPU"), (35, "queries"), (55, "keys, values")):
        drawing.write(_LEFT - 8, top + row, what, size=9, align="right", colour=style.GREY)
    own: list[Box] = []
    copies: list[Box] = []
    texts: dict[bool, list[tuple[float, float, str]]] = {False: [], True: []}
    seen: set[int] = set()
    for gpu, (queries, keys) in enumerate(gpus):
        x = _LEFT + gpu * (width + _GAP)
        drawing.write(x + width / 2, top + 18, str(gpu), size=9, align="center", colour=style.GREY)
        own += _side_by_side(x, top + 24, width, _QUERY, len(queries))
        boxes = _side_by_side(x, top + 42, width, _KEY, len(keys))
        for head, box in zip(keys, boxes, strict=True):
            (copies if head in seen else own).append(box)
            texts[head in seen].append((box[0] + box[2] / 2, box[1] + 13, str(head)))
        seen |= set(keys)
    drawing.boxes(own, style.WEIGHTS)
    drawing.boxes(copies, style.WARNING, "/")
    for copied, its in texts.items():
        if its:
            ink = style.on(style.WARNING if copied else style.WEIGHTS)
            drawing.write_all(its, size=9, align="center", colour=ink, bold=True)


def _side_by_side(x: float, y: float, width: float, height: float, count: int) -> list[Box]:
    return [(x + place * width / count, y, width / count, height) for place in range(count)]


def _sentence(cuts: Mapping[str, Sequence[Heads]]) -> str:
    def told(gpus: Sequence[Heads]) -> str:
        keys = [head for _, its in gpus for head in its]
        return (
            f"{counted(len(gpus[0][0]), 'query head')} and "
            f"{counted(len(gpus[0][1]), 'key-value head')} on GPU 0, "
            f"{len(keys) - len(set(keys))} copies in all"
        )

    return "; ".join(f"{name}: {told(gpus)}" for name, gpus in cuts.items()) + "."
