"""Which layer lies in which buffer while one computes: the two pairs of YaFSDP."""

from collections.abc import Sequence
from typing import Protocol

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing

_BUFFERS = ("weights, even", "weights, odd", "gradients, even", "gradients, odd")
_WORDS = ("gathered weights", "gathered weights", "gradients", "gradients")


class Moment(Protocol):
    """What lies where while `layer` computes; None is an empty buffer."""

    @property
    def phase(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def weights(self) -> Sequence[int | None]: ...
    @property
    def gradients(self) -> Sequence[int | None]: ...


def two_buffers(moments: Sequence[Moment], title: str = "") -> Drawing:
    """A column for each moment: the layer that computes, and the four buffers below it.

    A `phase` is "forward" or "backward".
    """
    grid: dict[str, dict[str, Cell]] = {row: {} for row in ("computes", *_BUFFERS)}
    for place, moment in enumerate(moments, 1):
        column = f"{moment.phase}\n{place}"
        grid["computes"][column] = Cell(str(moment.layer), {0: moment.phase}, bold=True)
        held = (*moment.weights, *moment.gradients)
        for buffer, layer, word in zip(_BUFFERS, held, _WORDS, strict=True):
            if layer is not None:
                bold = layer == moment.layer
                grid[buffer][column] = Cell(str(layer), {0: word}, bold=bold)
    return page(
        title,
        Cells(dict(grid), gap=2.0),
        notes=[
            "bold: the layer that computes; in other buffers meanwhile: weights of the layer to "
            "come,",
            "gradients of the layer before",
        ],
    )
