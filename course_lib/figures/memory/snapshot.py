"""A memory snapshot of torch, sorted into the course's seven consumers."""

from pathlib import Path

from course_lib.figures.memory.memory_over_time import LEFT, PANEL_PT, Panel
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.snapshot import read_snapshot

_LEAKS = 3  # of more the largest are written
_PLACE = 45  # letters that fit behind the numbers


def snapshot(path: str | Path, name: str = "") -> Drawing:
    """What torch.cuda.memory._dump_snapshot(path) wrote: bytes over time, and leaks.

    The file is read without running anything in it. Raises ValueError for a file that is no
    snapshot, and FileNotFoundError.
    """
    found = read_snapshot(Path(path).read_bytes())
    panel = Panel(name or Path(path).name, found)
    leaks = found.leaks[:_LEAKS]
    lines = [
        f"{format_bytes(it.size_bytes)} in {it.blocks} blocks never freed: {_short(it.where)}"
        for it in leaks
    ]
    sentence = "; ".join([panel.sentence(), *lines])
    drawing = Drawing(PANEL_PT + 16 * len(lines), f"{sentence}.")
    panel.draw(drawing, 0, max(panel.peak_bytes, 1))
    for row, line in enumerate(lines):
        y = PANEL_PT + 16 * row
        drawing.boxes([(LEFT, y, 9, 9)], style.WARNING)
        drawing.write(LEFT + 13, y + 8, line, size=9)
    return drawing


def _short(place: str) -> str:
    return place if len(place) <= _PLACE else place[: _PLACE - 1] + "…"
