"""How tensors are shared among ranks, and what the ranks send for it."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.theory.network.zero import shard


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
    looks = style.looks([*tensors], {})

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


def cut_rows(tensors: Mapping[str, tuple[int, int]], ranks: int) -> Drawing:
    """A line for each tensor (name: rows and columns): the whole one, and each rank's rows."""

    def rows(name: str, start: int, stop: int, zeros: int) -> Cell:
        count, columns = tensors[name]
        filled = dict.fromkeys(range(start * columns, stop * columns), name)
        end = (stop + zeros) * columns
        filled |= dict.fromkeys(range(stop * columns, end), "padding")
        return Cell("", filled, max(count * columns, end), columns)

    grid = {}
    for name, (count, _) in tensors.items():
        grid[name] = {"whole": rows(name, 0, count, 0)}
        for rank in range(ranks):
            part = shard(count, ranks, rank)
            grid[name][f"rank {rank}"] = rows(name, part.start, part.stop, part.zeros)
    title = f"Each tensor by itself, cut by rows over {counted(ranks, 'rank')}"
    return page(title, Cells(grid, square=13, looks=style.looks([*tensors], {})))


def shard_groups(strategies: Mapping[str, int], nodes: int, per_node: int) -> Drawing:
    """A column for each GPU, filled where it holds the layer: {strategy: ranks in a shard group}.

    In a group of g ranks each holds 1/g, rank r the part number r mod g.
    """
    names = [f"node {node}\nGPU {gpu}" for node in range(nodes) for gpu in range(per_node)]
    grid = {}
    for name, group in strategies.items():
        part = "all of it" if group == 1 else f"1/{group} on each GPU"
        grid[f"{name}\n{part}"] = {
            gpu: Cell("", {rank % group: "weights"}, group, 1) for rank, gpu in enumerate(names)
        }
    return cells(grid, high=36.0)


def halves(sent: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """{"stage 1": ["gradients", "weights"]}: one box for each reduce-scatter or all-gather."""
    short = max(map(len, sent.values())) > 5
    grid = {
        f"{name}\n{len(each) / 2:g} × plain": {
            str(place): Cell(what[0].upper() if short else what, {0: what})
            for place, what in enumerate(each)
        }
        for name, each in sent.items()
    }
    note = "Each box: (n-1)/n of the model's bytes, sent by each rank."
    return cells(grid, title, heads=False, note=note, high=26)
