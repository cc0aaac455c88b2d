"""Who talks to whom in one update: every message of a GPU, and the group it goes around in."""

from dataclasses import dataclass, replace

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network import mesh
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import Collective
from course_lib.trace import Event, Trace
from course_lib.validation import whole

_ONE_BUCKET = CommunicationPolicy(bucket_bytes=10**15)

# The order in which they come up: forward, backward, end of the update.
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
    """One kind of message: what a GPU sends, and all groups in which that happens at the same time.

    `group` is the GPU's own one of `groups`; `nodes` is how many nodes it lies on.
    """

    message: Collective
    groups: tuple[tuple[int, ...], ...]
    group: tuple[int, ...]
    nodes: int


@checked
def who_talks(job: Job, rank: int = 0) -> tuple[Talk, ...]:
    """The messages of `step_traffic` for one rank, with their groups, in the order of an update.

    Ranks stand in `mesh.ORDER`. Gradients and parameters travel in one bucket. Raises ValueError
    for a rank that is not there, and for a layout with a `shard_group` or DualPipe.
    """
    layout = job.layout
    whole("rank", rank, least=0, most=layout.world - 1)
    if layout.shard_groups > 1 or layout.schedule == "dualpipe":
        raise ValueError(
            f"shard_group {layout.shard_group} and schedule {layout.schedule!r}: groups are known "
            "without a shard_group and for other schedules than 'dualpipe'"
        )
    stage = mesh.place(layout, rank)["pp"]
    sent = step_traffic(job, stage, policy=_ONE_BUCKET).collectives
    return tuple(_talk(job, rank, message) for message in sorted(sent, key=_turn))


def sent_in_turn(talks: tuple[Talk, ...], rank: int = 0) -> Trace:
    """An event of `rank` in each turn, with all bytes that it sends in an update, by axis."""
    turns = enumerate(talk.message for talk in talks)
    return Trace(
        Event(turn, rank, it.operation, it.what, bytes=round(it.total_bytes), label=it.axis)
        for turn, it in turns
    )


def sent_bytes(talks: tuple[Talk, ...], axis: str = "") -> float:
    """What a rank sends in an update: along one axis, or along all."""
    return sum(it.message.total_bytes for it in talks if axis in ("", it.message.axis))


def _turn(message: Collective) -> int:
    for turn, (axis, what) in enumerate(_TURNS):
        if message.axis == axis and message.what.startswith(what):
            return turn
    return len(_TURNS)


def _talk(job: Job, rank: int, message: Collective) -> Talk:
    groups = _groups(job.layout, message)
    (own,) = (group for group in groups if rank in group)
    nodes = len({member // job.cluster.gpus_per_node for member in own})
    return Talk(message, groups, own, nodes)


def _groups(layout: Layout, message: Collective) -> tuple[tuple[int, ...], ...]:
    """Groups of one axis; dp and ep run along dp · cp, whose ranks stand in one line."""
    if message.axis in ("tp", "cp"):
        return mesh.groups(layout, message.axis)
    if message.axis == "pp":
        pipelines = mesh.groups(layout, "pp")
        if message.operation == "send-recv":
            return pipelines
        return tuple((line[0], line[-1]) for line in pipelines)  # two copies of a tied table
    lines = mesh.groups(replace(layout, dp=layout.dp * layout.cp, cp=1), "dp")
    ep = layout.ep
    if message.axis == "ep":
        cuts = range(0, layout.dp * layout.cp, ep)
        return tuple(line[cut : cut + ep] for line in lines for cut in cuts)
    if message.place == "experts":
        return tuple(line[first::ep] for line in lines for first in range(ep))
    return lines
