"""Copies of one model, whole (DDP) or in parts (ZeRO, FSDP): who keeps what, and what is sent."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.bars import stacked_bars
from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.lanes import lanes
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing, counted
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.unit_life import COMPUTES
from course_lib.theory.network.zero import shard
from course_lib.trace import Event

# --- shares -------------------------------------------------------------------------------------
# How tensors are shared among ranks, and what the ranks send for it.


class _Cut(Cells):
    """A first row across all columns, with a thick mark where each of the later ones begins."""

    def draw(self, drawing: Drawing, top: float) -> None:
        super().draw(drawing, top)
        first, last = self.columns[0], self.columns[-1]
        left, right = self.x[first], self.x[last] + self.width[last]
        low = top + self.height_pt - 2 * self._row_height("kept")
        ends = low - 4, low + self.high["the vector"] + 4
        parts = len(self.columns)
        cuts = [left + (right - left) * part / parts for part in range(1, parts)]
        drawing.lines([[(x, y) for y in ends] for x in cuts], style.INK, 2.5)


def cut_unit(tensors: Mapping[str, int], ranks: int) -> Drawing:
    """`tensors` (name: numbers) behind one another, filled up with zeros and cut into equal parts.

    Above: the vector. Below: what each rank keeps.
    """
    names = [name for name, count in tensors.items() for _ in range(count)]
    parts = [shard(len(names), ranks, rank) for rank in range(ranks)]
    names += ["padding"] * sum(part.zeros for part in parts)
    looks = style.looks([*tensors])

    def kept(start: int, stop: int, wide: int = 1) -> Cell:
        filled = dict(enumerate(names[start:stop]))
        zeros = {slot: "0" for slot, name in filled.items() if name == "padding"}
        return Cell("", filled, stop - start, texts=zeros, wide=wide)

    size = len(names) // ranks
    own = {f"rank {rank}": kept(rank * size, (rank + 1) * size) for rank in range(ranks)}
    grid = {"the vector": {"rank 0": kept(0, len(names), ranks)}, "kept": own}
    title = f"A unit of {sum(tensors.values())} numbers, cut over {counted(ranks, 'rank')}"
    each = ", ".join(f"{count} of {name}" for name, count in tensors.items())
    zeros = names.count("padding")
    said = f"{each}) and {zeros} of padding, cut into {counted(ranks, 'part')} of {size}"
    vector = _Cut(grid, lined=True, gap=8, between=10, looks=looks, said=f"One vector ({said}")
    return page(title, vector)


# --- zero ---------------------------------------------------------------------------------------
# ZeRO: which rank stores which part, what each stage leaves on one GPU, and what a run did.


def stored_by_version(
    stored: Mapping[str, Mapping[str, int]],
    sent_bytes: Mapping[str, float],
    title: str = "",
    unit: str = "GB",
) -> Drawing:
    """A bar for each version of a run, by kind, and the bytes that a rank sent in one update.

    `stored[version]` are bytes by kind of `weights`, `gradients` and `optimizer`.
    """
    totals = {
        name: f"{format_bytes(sum(kinds.values()), unit)} stored, "
        f"{format_bytes(sent_bytes[name], unit)} sent"
        for name, kinds in stored.items()
    }
    return stacked_bars(stored, title, lambda size: format_bytes(size, unit), totals)


# --- lanes --------------------------------------------------------------------------------------
# Two lanes of a rank of FSDP, computing and messages: where a step's time goes.


def two_lanes(charts: Mapping[str, Sequence[Event]]) -> Drawing:
    """Charts below one another on one scale: {"predicted": tasks, "measured": tasks}.

    The number in a bar is its unit; 0 is the root.
    """
    rows: dict[str, dict[str, list[Event]]] = {}
    for name, tasks in charts.items():
        rows[name] = {"computing": [], "messages": []}
        for task in tasks:
            if task.until > task.at:
                rows[name]["computing" if task.what in COMPUTES else "messages"].append(task)
    return lanes(rows)
