"""The way of a tensor from one GPU's memory to another's: by TCP, by RDMA, by GPUDirect RDMA."""

from itertools import pairwise

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_number

_NAMES = ("GPU memory", "program's buffer", "kernel's buffer", "network card")
_PLACES = (*range(4), *reversed(range(4)))  # out at the left, in at the right
_BOX, _HEIGHT, _STEP, _TOP, _ROW = 52.0, 32.0, 66.0, 62.0, 92.0
# By name: the places that the bytes pass, by their names' numbers.
_WAYS = {
    "TCP": (0, 1, 2, 3),
    "RDMA": (0, 1, 3),
    "RDMA straight to the GPU (GPUDirect)": (0, 3),
}


def _moves(way: str) -> tuple[int, int]:
    """How often the bytes are moved on the whole way, and how often by a processor.

    Raises KeyError for another way than those drawn.
    """
    passed = _WAYS[way]
    return 2 * (len(passed) - 1) + 1, 2 if 2 in passed else 0


def rdma_paths(processor_s_per_gb: float | None = None) -> Sheet:
    """Three chains of boxes, one below the other; what a processor copies is thick.

    `processor_s_per_gb`: what TCP was measured to cost, told beside its chain.
    """
    sheet = Sheet(_TOP + _ROW * len(_WAYS) + 18, _sentence(processor_s_per_gb))
    title = "From the memory of one GPU to that of a GPU in another node"
    sheet.title(title)
    sheet.write(_STEP * 2 - 7, 34, "sending node", align="center", colour=style.GREY)
    sheet.write(_STEP * 6 - 7, 34, "receiving node", align="center", colour=style.GREY)
    for row, way in enumerate(_WAYS):
        _chain(sheet, way, _TOP + row * _ROW, processor_s_per_gb if way == "TCP" else None)
    y = _TOP + _ROW * len(_WAYS)
    sheet.line([(0, y + 4), (28, y + 4)], style.WARNING, 5)
    sheet.write(34, y + 8, "copied by a processor")
    sheet.line([(170, y + 4), (198, y + 4)], style.MESSAGES, 1.5)
    sheet.write(204, y + 8, "moved by GPU or card (DMA)")
    sheet.boxes([(370, y - 3, 22, 14)], style.WHITE, edge=style.GREY, dashed=True)
    sheet.write(398, y + 8, "passed by")
    return sheet


def _sentence(processor_s_per_gb: float | None = None) -> str:
    """The moves of each way, in words."""
    counts = {way: _moves(way) for way in _WAYS}
    told = "; ".join(
        f"{way}: the bytes are moved {every} times, {by_processor} of them by a processor"
        for way, (every, by_processor) in counts.items()
    )
    if processor_s_per_gb is None:
        return f"{told}."
    return f"{told}. TCP takes {format_number(processor_s_per_gb, 2)} s of a processor for each GB."


def _chain(sheet: Sheet, way: str, top: float, processor_s_per_gb: float | None) -> None:
    passed = _WAYS[way]
    every, by_processor = _moves(way)
    told = f"{every} moves, {by_processor or 'none'} by a processor"
    if processor_s_per_gb is not None:
        told += f": {format_number(processor_s_per_gb, 2)} s of it for each GB"
    sheet.write(0, top, way, bold=True)
    sheet.write(516, top, told, align="right")
    y = top + 10
    middle = y + _HEIGHT / 2
    stops = [place for place, part in enumerate(_PLACES) if part in passed]
    passed_by = [(place * _STEP, y, _BOX, _HEIGHT) for place in range(8) if place not in stops]
    sheet.boxes(passed_by, style.WHITE, edge=style.GREY, dashed=True)
    for start, end in pairwise(stops):
        parts = {_PLACES[start], _PLACES[end]}
        look = (style.WARNING, 5.0) if parts == {1, 2} else (style.MESSAGES, 1.5)
        sheet.line([(start * _STEP + _BOX, middle), (end * _STEP, middle)], *look)
    for place in stops:
        part, x = _PLACES[place], place * _STEP
        fill = style.SKY if part in (0, 3) else style.PALE
        sheet.boxes([(x, y, _BOX, _HEIGHT)], fill)
        for line, word in enumerate(_NAMES[part].split()):
            ink = style.on(fill)
            sheet.write(x + _BOX / 2, y + 13 + 12 * line, word, 9, "center", ink)
    wire = 3.5 * _STEP + _BOX / 2
    sheet.write(wire, y + _HEIGHT + 14, "cable", size=9, align="center", colour=style.GREY)
