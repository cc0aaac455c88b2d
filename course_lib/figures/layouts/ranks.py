"""Where ranks stand, and with whom they share what."""

from collections.abc import Mapping, Sequence

from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.mesh import place
from course_lib.theory.step.batching import Batching

_AXES = ("tp", "dp", "pp")


def rank_groups(groups: Mapping[str, Sequence[int]], ranks: int, per_node: int) -> Drawing:
    """A row for each node, a box for each rank; in colour the groups that share a rank.

    `groups`: {"tp": [12, 13, 14, 15], …}, all with one rank in common, which gets a thick frame.
    """
    (me,) = set.intersection(*map(set, groups.values()))
    grid: dict[str, dict[str, Cell]] = {}
    for rank in range(ranks):
        node, column = divmod(rank, per_node)
        grid.setdefault(f"node {node}", {})[str(column)] = _rank(rank, me, groups)
    return cells(grid, f"Rank {me} of {ranks} and its groups", heads=False, high=26.0)


def rank_mesh(
    places: Sequence[Mapping[str, int]], sent: Mapping[str, Sequence[int]] | None = None
) -> Drawing:
    """One box a rank: stages of the pipeline side by side, replicas below each other.

    In colour the groups of rank 0. `places[rank]` holds the coordinates pp, dp and tp; `sent` the
    calls and bytes of rank 0 by "axis operation", as a demo's version has them.
    """
    groups = {
        axis: [rank for rank, one in enumerate(places) if _differ(one, places[0]) <= {axis}]
        for axis in _AXES
    }
    grid: dict[str, dict[str, Cell]] = {}
    for rank, at in enumerate(places):
        row = grid.setdefault(f"replica {at['dp']}", {})
        row[f"stage {at['pp']}\ntp {at['tp']}"] = _rank(rank, 0, groups)
    steps = {axis: its[1] for axis, its in groups.items() if len(its) > 1}
    notes = [", ".join(f"along {axis}: + {step}" for axis, step in steps.items())] * bool(steps)
    for what, (calls, size) in (sent or {}).items():
        notes.append(f"rank 0, each update: {calls:,} × {what}, {size:,} B in all")
    sizes = " × ".join(f"{axis} {1 + max(one[axis] for one in places)}" for axis in _AXES[::-1])
    return cells(grid, f"{counted(len(places), 'rank')}: {sizes}", notes=notes, high=26.0)


def _rank(rank: int, me: int, groups: Mapping[str, Sequence[int]]) -> Cell:
    if rank == me:
        return Cell(str(rank), frame="now", bold=True)
    axis = next((axis for axis, its in groups.items() if rank in its), "")
    return Cell(str(rank), {0: f"{axis} group of rank {me}" if axis else "others"})


def _differ(one: Mapping[str, int], other: Mapping[str, int]) -> set[str]:
    return {axis for axis in _AXES if one[axis] != other[axis]}


def same_samples(plans: Mapping[str, Batching]) -> Drawing:
    """One grid beside the other, a row for each node; the number in a box is its dp rank.

    Boxes of dp rank 0 are filled: these GPUs work on one part of the batch.
    """
    grid: dict[str, dict[str, Cell]] = {}
    for name, plan in plans.items():
        layout = Layout(tp=plan.tp, cp=plan.cp, dp=plan.dp, pp=plan.pp)
        head = f"{name}\n{counted(plan.dp, 'part')} of the batch, {plan.global_batch:,} samples"
        for gpu in range(plan.nodes * plan.gpus_per_node):
            node, column = divmod(gpu, plan.gpus_per_node)
            part = place(layout, gpu)["dp"]
            cell = Cell(str(part), {0: "computing"} if part == 0 else {})
            grid.setdefault(f"node {node}", {})[f"{head}\n{column}"] = cell
    said = "; ".join(
        f"{name}: {counted(plan.tp * plan.pp * plan.cp, 'GPU')} for each of {plan.dp} parts of a "
        f"batch of {plan.global_batch:,} samples"
        for name, plan in plans.items()
    )
    return cells(grid, "The dp rank of each GPU", high=15.0, gap=3.0, said=said)


# By name: what is cut, what moves, and whether the network must add.
_FAMILIES = {
    "data": ("the batch", "gradients", "added up"),
    "pipeline": ("the stack of layers", "activations", "passed on"),
    "tensor": ("every matrix", "partial sums", "added up"),
    "expert": ("the experts of a layer", "tokens", "passed on"),
}


def families(sent_bytes: Mapping[str, int] | None = None) -> Drawing:
    """Three GPUs under data, pipeline, tensor and expert parallelism: what each holds.

    `sent_bytes`: by family, what one GPU handed to the network; then the figure also says whether
    the network must add it up.
    """
    blocks: list[dict[str, dict[str, Cell]]]
    blocks = [{f"layer {layer + 1}": {} for layer in range(3)} for _ in range(2)]
    said = []
    for number, (name, (cut, moves, how)) in enumerate(_FAMILIES.items()):
        told = f"{moves}, {how}: {sent_bytes[name]:,} bytes" if sent_bytes else f"moves {moves}"
        said.append(f"{name} parallelism cuts {cut}; {told}")
        for gpu in range(3):
            column = f"{name}: cuts {cut}\n{told}\nGPU {gpu}"
            for layer, row in enumerate(blocks[number // 2].values()):
                row[column] = _held(name, gpu, layer)
    title = "One model of 3 layers on 3 GPUs: filled is what a GPU holds"
    spoken = (". ".join(said[:2]), ". ".join(said[2:]))
    return page(title, *(Cells(g, high=26.0, said=s) for g, s in zip(blocks, spoken, strict=True)))


def _held(family: str, gpu: int, layer: int) -> Cell:
    """The part of a layer that a GPU holds; attention, which all have, above one of the experts."""
    if family == "tensor":
        return Cell("", {gpu: "weights"}, 3)
    if family == "expert":
        return Cell("", dict.fromkeys((0, 1, 2, 3 + gpu), "weights"), 6, 3)
    return Cell("", {0: "weights"} if family == "data" or gpu == layer else {})
