"""The stacks of several ranks side by side: who waits, and who is elsewhere."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted, elide

_WORDS = {"yours": "your program", "torch": "torch", "communication": "torch.distributed"}
_MOST, _CHARACTER = 24, 5.7
Line = tuple[str, str]  # function, kind


def rank_stacks(stacks: Mapping[str, Sequence[Line]], title: str = "") -> Drawing:
    """{"rank 0": [("train", "yours"), …, ("all_gather", "communication")]}, the innermost last.

    Each stack grows upwards, the line where the rank stands is framed. A kind is yours, torch or
    communication.
    """
    letters = int(((WIDTH_PT - 30) / len(stacks) - 12) / _CHARACTER)
    high = max(map(len, stacks.values()))
    grid: dict[str, dict[str, Cell]] = {
        str(place + 1): {} for place in reversed(range(min(high, _MOST)))
    }
    for rank, lines in stacks.items():
        shown = elide(len(lines), _MOST)
        for height, place in enumerate(shown, 1):
            function, kind = ("…", "torch") if place is None else lines[place]
            text = function if len(function) <= letters else function[: letters - 1] + "…"
            frame = "standing" if height == len(shown) else ""
            grid[str(height)][rank] = Cell(text, {0: _WORDS[kind]}, frame=frame)
    told = (
        f"{name} stands in {lines[-1][0]} of {_WORDS[lines[-1][1]]}, {counted(len(lines), 'line')}"
        for name, lines in stacks.items()
    )
    return page(title, Cells(grid, high=15.0, between=0.0, said="; ".join(told)))
