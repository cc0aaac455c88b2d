"""The device mesh of a layout: coordinates of ranks, groups, and the nodes that groups span.

Axes are named innermost first. Megatron-LM's order: tp, cp, dp, pp (Narayanan et al. 2021,
arXiv:2104.04473, section 3; Megatron-LM, parallel_state.py, "tp-cp-ep-dp-pp").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from course_lib.checked import Count, CountOrZero, check_public
from course_lib.theory.inputs import Job, Layout
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import Collective, CommunicationPolicy
from course_lib.trace import Event, Trace
from course_lib.validation import divisible, listed, whole

ORDER = ("tp", "cp", "dp", "pp")
# The axes of the experts' mesh, and the axes that they replace.
EXPERT_AXES = {"etp": "tp", "ep": "cp", "edp": "dp"}


def data_parallel(world: Count, tp: Count = 1, pp: Count = 1, cp: Count = 1) -> int:
    """Replicas of the model: dp = world / (tp · pp · cp).

    Raises ValueError if the product does not divide `world`.
    """
    replica = tp * pp * cp
    if world % replica:
        raise ValueError(
            f"world {world} / (tp {tp} * pp {pp} * cp {cp}) = {world / replica:g} is not a whole "
            f"number of replicas: use {world // replica * replica} GPUs, or other degrees"
        )
    return world // replica


def strides(layout: Layout, order: Sequence[Annotated[str, ORDER]] = ORDER) -> dict[str, int]:
    """Rank stride between neighbours on each axis: the product of the degrees of inner axes.

    Raises ValueError unless `order` names each axis once.
    """
    if sorted(order) != sorted(ORDER):
        raise ValueError(
            f"order {tuple(order)} must name each of {', '.join(ORDER)} once: it is innermost first"
        )
    result, stride = {}, 1
    for axis in order:
        result[axis] = stride
        stride *= getattr(layout, axis)
    return result


def place(layout: Layout, rank: int, order: Sequence[str] = ORDER) -> dict[str, int]:
    """Coordinates of a rank on each axis: rank // stride mod degree."""
    whole("rank", rank, least=0, most=layout.world - 1)
    return {
        axis: rank // stride % getattr(layout, axis)
        for axis, stride in strides(layout, order).items()
    }


def groups(
    layout: Layout, axis: Annotated[str, ORDER], order: Sequence[str] = ORDER
) -> tuple[tuple[int, ...], ...]:
    """Groups of ranks that differ only in `axis`, one tuple per group, sorted by first rank."""
    stride, degree = strides(layout, order)[axis], getattr(layout, axis)
    listed("world", layout.world, "take smaller degrees, or ask `place` about one rank")
    width = stride * degree  # ranks in a block of interleaved groups
    blocks = range(0, layout.world, width)
    starts = (block + rank for block in blocks for rank in range(stride))
    return tuple(tuple(range(start, start + width, stride)) for start in starts)


def expert_groups(
    layout: Layout, axis: Annotated[str, EXPERT_AXES], etp: Count | None = None
) -> tuple[tuple[int, ...], ...]:
    """Groups of the experts' mesh along "etp", "ep" or "edp", sorted by first rank.

    Each stage's tp · cp · dp ranks form a second mesh: etp ranks share an expert's matrices, ep
    such groups have all experts, and edp = tp·cp·dp / (etp·ep) ranks are replicas.
    `etp` None: tp, as in the rest of `theory`. Source: Liu et al. 2025, arXiv:2504.14960,
    section 3.2; Megatron-LM, parallel_state.py.
    """
    etp = layout.tp if etp is None else etp
    stage = layout.tp * layout.cp * layout.dp
    divisible("tp*cp*dp", stage, "etp*ep", etp * layout.ep)
    folded = Layout(dp=stage // (etp * layout.ep), tp=etp, cp=layout.ep, pp=layout.pp)
    return groups(folded, EXPERT_AXES[axis])


def nodes_of(
    layout: Layout, axis: str, gpus_per_node: Count = 8, order: Sequence[str] = ORDER
) -> int:
    """Largest number of nodes that a group of `axis` spans; 1: all groups stay within a node."""
    members = groups(layout, axis, order)
    return max(len({rank // gpus_per_node for rank in group}) for group in members)


# --- Communication in one update: every message of a GPU, and its group ---

_ONE_BUCKET = CommunicationPolicy(bucket_bytes=10**15)

# The order of messages in an update: forward, backward, end of the update.
_TURNS = (
    ("tp", "embedding"),
    ("cp", "keys and values"),
    ("tp", "attention"),
    ("ep", "dispatch"),
    ("tp", "MLP"),
    ("tp", "experts"),
    ("tp", "shared experts"),
    ("ep", "combine"),
    ("pp", "activations"),
    ("tp", "head"),
    ("tp", "loss"),
    ("pp", "gradients"),
    ("cp", "their gradients"),
    ("dp", "gradients"),
    ("pp", ""),
    ("dp", ""),
)


@dataclass(frozen=True)
class Talk:
    """One kind of message of a GPU, and all groups that exchange it at the same time.

    `group` is the one of `groups` that contains the GPU; `nodes` is how many nodes it spans.
    """

    message: Collective
    groups: tuple[tuple[int, ...], ...]
    group: tuple[int, ...]
    nodes: int


def who_talks(job: Job, rank: int = 0) -> tuple[Talk, ...]:
    """The messages of `step_traffic` for one rank, with their groups, in the order of an update.

    Ranks are placed in `ORDER`. Gradients and parameters are sent in one bucket. Raises ValueError
    for a rank out of range, and for a layout with a `shard_group` or DualPipe.
    """
    layout = job.layout
    whole("rank", rank, least=0, most=layout.world - 1)
    if layout.shard_groups > 1 or layout.schedule == "dualpipe":
        raise ValueError(
            f"shard_group {layout.shard_group} and schedule {layout.schedule!r}: groups are known "
            "without a shard_group and for other schedules than 'dualpipe'"
        )
    stage = place(layout, rank)["pp"]
    sent = step_traffic(job, stage, policy=_ONE_BUCKET).collectives
    talks = []
    for message in sorted(sent, key=_turn):
        parallel = _groups(layout, message)
        (group,) = (each for each in parallel if rank in each)
        nodes = len({member // job.cluster.gpus_per_node for member in group})
        talks.append(Talk(message, parallel, group, nodes))
    return tuple(talks)


def sent_in_turn(talks: tuple[Talk, ...], rank: CountOrZero = 0) -> Trace:
    """A trace with one event of `rank` per message: all its bytes in an update, axis as label."""
    turns = enumerate(talk.message for talk in talks)
    return Trace(
        Event(turn, rank, one.operation, one.what, bytes=round(one.total_bytes), label=one.axis)
        for turn, one in turns
    )


def sent_bytes(talks: tuple[Talk, ...], axis: str = "") -> float:
    """Bytes that a rank sends in an update along `axis`, or along all axes."""
    return sum(talk.message.total_bytes for talk in talks if axis in ("", talk.message.axis))


def _turn(message: Collective) -> int:
    for turn, (axis, what) in enumerate(_TURNS):
        if message.axis == axis and message.what.startswith(what):
            return turn
    return len(_TURNS)


def _groups(layout: Layout, message: Collective) -> tuple[tuple[int, ...], ...]:
    """The groups of a message; those of dp and ep run along the combined dp · cp axis."""
    if message.axis in ("tp", "cp"):
        return groups(layout, message.axis)
    if message.axis == "pp":
        pipelines = groups(layout, "pp")
        if message.operation == "send-recv":
            return pipelines
        return tuple((line[0], line[-1]) for line in pipelines)  # two copies of a tied table
    lines = groups(replace(layout, dp=layout.dp * layout.cp, cp=1), "dp")
    ep = layout.ep
    if message.axis == "ep":
        cuts = range(0, layout.dp * layout.cp, ep)
        return tuple(line[cut : cut + ep] for line in lines for cut in cuts)
    if message.place == "experts":
        return tuple(line[first::ep] for line in lines for first in range(ep))
    return lines


check_public(globals())
