"""Where the ranks of a layout stand: coordinates, groups, and which groups leave their node.

Axes are named innermost first. Megatron-LM's order: tp, cp, dp, pp (Narayanan et al. 2021,
arXiv:2104.04473, section 3; Megatron-LM, parallel_state.py, "tp-cp-ep-dp-pp").
"""

from collections.abc import Sequence

from course_lib.checked import checked
from course_lib.theory.inputs.layout import Layout
from course_lib.validation import choice, divisible, listed, whole

ORDER = ("tp", "cp", "dp", "pp")
# The axes of the experts' own mesh, and those in whose place they stand.
EXPERT_AXES = {"etp": "tp", "ep": "cp", "edp": "dp"}


def data_parallel(world: int, tp: int = 1, pp: int = 1, cp: int = 1) -> int:
    """Replicas of the model: dp = world / (tp · pp · cp).

    Raises ValueError where the product does not divide `world`.
    """
    replica = 1
    for name, degree in {"world": world, "tp": tp, "pp": pp, "cp": cp}.items():
        whole(name, degree)
        replica *= 1 if name == "world" else degree
    if world % replica:
        raise ValueError(
            f"world {world} / (tp {tp} * pp {pp} * cp {cp}) = {world / replica:g} is not a whole "
            f"number of replicas: use {world // replica * replica} GPUs, or other degrees"
        )
    return world // replica


@checked
def strides(layout: Layout, order: Sequence[str] = ORDER) -> dict[str, int]:
    """Distance in ranks between neighbours on each axis: the product of the axes further inside.

    Raises ValueError unless `order` names each axis once.
    """
    for axis in order:
        choice("order", axis, ORDER)
    if sorted(order) != sorted(ORDER):
        raise ValueError(
            f"order {tuple(order)} must name each of {', '.join(ORDER)} once: it is innermost first"
        )
    found, stride = {}, 1
    for axis in order:
        found[axis] = stride
        stride *= getattr(layout, axis)
    return found


@checked
def place(layout: Layout, rank: int, order: Sequence[str] = ORDER) -> dict[str, int]:
    """Coordinates of a rank: rank // stride mod degree, for each axis.

    Raises ValueError for a rank that the layout does not have.
    """
    whole("rank", rank, least=0, most=layout.world - 1)
    return {
        axis: rank // stride % getattr(layout, axis)
        for axis, stride in strides(layout, order).items()
    }


@checked
def groups(layout: Layout, axis: str, order: Sequence[str] = ORDER) -> tuple[tuple[int, ...], ...]:
    """The ranks that differ in `axis` only, one tuple per group, by their first rank."""
    choice("axis", axis, ORDER)
    stride, degree = strides(layout, order)[axis], getattr(layout, axis)
    listed("world", layout.world, "take smaller degrees, or ask `place` about one rank")
    width = stride * degree  # ranks from the first of one block of groups to the first of the next
    blocks = range(0, layout.world, width)
    starts = (block + rank for block in blocks for rank in range(stride))
    return tuple(tuple(range(start, start + width, stride)) for start in starts)


@checked
def expert_groups(layout: Layout, axis: str, etp: int | None = None) -> tuple[tuple[int, ...], ...]:
    """Groups of the experts' own mesh, "etp", "ep" or "edp", over the same ranks, by their first.

    Each stage's tp · cp · dp ranks are dealt out anew: etp ranks share an expert's matrices, ep
    such groups have all experts, and the edp = tp·cp·dp / (etp·ep) ranks of a place hold the same.
    `etp` None: tp, as the rest of the theory has it. Source: Liu et al. 2025, arXiv:2504.14960,
    section 3.2; Megatron-LM, parallel_state.py. Raises ValueError for degrees that do not divide.
    """
    choice("axis", axis, EXPERT_AXES)
    etp = layout.tp if etp is None else etp
    whole("etp", etp)
    stage = layout.tp * layout.cp * layout.dp
    divisible("tp*cp*dp", stage, "etp*ep", etp * layout.ep)
    folded = Layout(dp=stage // (etp * layout.ep), tp=etp, cp=layout.ep, pp=layout.pp)
    return groups(folded, EXPERT_AXES[axis])


@checked
def nodes_of(
    layout: Layout, axis: str, gpus_per_node: int = 8, order: Sequence[str] = ORDER
) -> int:
    """Nodes over which the most scattered group of `axis` lies; 1: it never leaves its node."""
    whole("gpus_per_node", gpus_per_node)
    members = groups(layout, axis, order)
    return max(len({rank // gpus_per_node for rank in group}) for group in members)
