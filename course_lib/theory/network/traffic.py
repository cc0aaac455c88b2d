"""What frameworks do differently when they communicate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated

from course_lib.checked import Count, CountOrZero, NotNegative, Text, check_public
from course_lib.theory.inputs import Cluster, Link
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network import collectives
from course_lib.theory.network.bucket_timeline import BUCKET_CAP_BYTES
from course_lib.theory.network.collectives import ALGORITHMS, Operation
from course_lib.validation import number, whole


@dataclass(frozen=True)
class CommunicationPolicy:
    """What frameworks do differently.

    `bucket_bytes`: gradients of stages 0 to 2, and ZeRO-1 and 2's parameters, travel in buckets of
    this size. `algorithm`: of all-reduces, "ring", "tree" or "double-tree". `token_nodes`: None
    sends a token once for each of its experts; a number sends it over the network once to each node
    that has some of them, to so many nodes at most, and forwards it there over the inner link
    meanwhile, once to each rank (DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 and 3.2.2: 4 nodes;
    DeepEP).
    """

    bucket_bytes: Count = BUCKET_CAP_BYTES
    algorithm: Annotated[str, ALGORITHMS] = "ring"
    token_nodes: Count | None = None


# --- The link that a group of ranks sees, inside a node or over several ---


def group_link(cluster: Cluster, operation: Operation, ranks: int, stride: int = 1) -> Link:
    """The link as one GPU of a group sees it: ranks r, r + stride, … with `ranks` members.

    Within a node: the inner link. Over k nodes with g members in each, each member next to its own
    network port: rings use all g ports of the group, min(inside, g · between); in all-to-all only
    (n-g)/(n-1) of the bytes leave the node, min(inside, between · (n-1)/(n-g)); send/recv has one
    port. Of the n-1 steps of a ring k-1 cross the network, and the latency is their mean.
    Source: NCCL, src/graph/tuning.cc (nInterSteps); Bekman, Machine Learning Engineering, network.
    """
    slowest = cluster.link(ranks, stride)
    if slowest == cluster.inside or operation == "send-recv":
        return slowest
    members = min(ranks, max(1, cluster.gpus_per_node // stride))
    crossing = (-(-ranks // members) - 1) / (ranks - 1)
    latency = cluster.inside.latency_s + crossing * (slowest.latency_s - cluster.inside.latency_s)
    ports: float = members
    if operation == "all-to-all":
        ports = (ranks - 1) / (ranks - members) if ranks > members else 1
    rate = min(cluster.inside.bytes_per_s, ports * slowest.bytes_per_s)
    return Link(slowest.name, rate, latency)


# --- Collectives of a training step: what is sent, how often, how many bytes, for how long ---

# The parallel degrees of a layout that communicate, innermost first.
AXES = ("tp", "cp", "ep", "dp", "pp")
Axis = Annotated[str, AXES]
Part = Annotated[float, partial(number, least=0, most=1)]
# What a message carries, and of which part of the model.
KINDS = ("activations", "gradients", "parameters")
PLACES = ("layers", "experts", "embedding", "head", "ends")


@dataclass(frozen=True)
class Collective:
    """One kind of call in a step: `count` times `operation` on `size_bytes` among `ranks` GPUs.

    `what` says in words which tensor, `kind` and `place` what it is and of which part of the model;
    `size_bytes` is the whole tensor as in `collectives`. `hidden`: by its nature it goes on behind
    computing. `alone`: so many of the calls have nothing to go on behind, such as the first gather
    of a pass and its last reduction.
    """

    axis: Axis
    what: Text
    operation: Operation
    count: CountOrZero
    size_bytes: NotNegative
    ranks: Count
    link: Link
    algorithm: Annotated[str, ALGORITHMS] = "ring"
    kind: Annotated[str, KINDS] = "activations"
    place: Annotated[str, PLACES] = "layers"
    hidden: bool = False
    alone: int = 0

    def __post_init__(self) -> None:
        whole("alone", self.alone, least=0, most=self.count)

    @cached_property
    def sent_bytes(self) -> float:
        """Bytes that one GPU sends in one call."""
        return collectives.sent_bytes(self.operation, self.size_bytes, self.ranks)

    @property
    def total_bytes(self) -> float:
        """Bytes that one GPU sends in a step: count · sent_bytes."""
        return self.count * self.sent_bytes

    @cached_property
    def seconds(self) -> float:
        """Time of all calls, one after the other: count · (steps · α + sent / β)."""
        sizes = (self.operation, self.size_bytes, self.ranks, self.link)
        known = self.operation in ALGORITHMS[self.algorithm].operations
        algorithm = self.algorithm if known else "ring"
        return self.count * collectives.seconds(*sizes, algorithm=algorithm)

    @property
    def waited_s(self) -> float:
        """Time that may have to be waited for: all of it, or none of what is hidden."""
        return 0.0 if self.hidden else self.seconds

    @property
    def hideable_s(self) -> float:
        """The part of it that computing can hide: all calls but those that are `alone`."""
        return self.waited_s * self._beside

    @property
    def hideable_bytes(self) -> float:
        """Bytes that the GPU sends meanwhile."""
        return 0.0 if self.hidden else self.total_bytes * self._beside

    @property
    def _beside(self) -> float:
        return 1 - self.alone / self.count if self.alone else 1.0


@dataclass(frozen=True)
class Traffic:
    """Every collective of one training step on one GPU; totals are properties.

    `overlap`: the part of an axis' time that hides behind computation, {"dp": 0.9}; 0 where absent.
    """

    collectives: tuple[Collective, ...]
    overlap: Mapping[Axis, Part] = field(default_factory=dict)

    @property
    def total_bytes(self) -> float:
        """Bytes that the GPU sends in a step."""
        return sum(entry.total_bytes for entry in self.collectives)

    @property
    def bytes_by_axis(self) -> dict[str, float]:
        """Bytes sent for each axis that communicates."""
        return self._sums("total_bytes")

    @property
    def seconds(self) -> float:
        """Time of all collectives, none hidden and none at the same time as another."""
        return sum(entry.seconds for entry in self.collectives)

    @property
    def waited_by_axis(self) -> dict[str, float]:
        """Time of each axis' collectives without what is hidden by its nature."""
        return self._sums("waited_s")

    @property
    def hideable_by_axis(self) -> dict[str, tuple[float, float]]:
        """Seconds of each axis that computing can hide, and bytes sent in them."""
        times, sent = self._sums("hideable_s"), self._sums("hideable_bytes")
        return {axis: (time, sent[axis]) for axis, time in times.items()}

    @property
    def exposed_by_axis(self) -> dict[str, float]:
        """Time of each axis that computation does not hide: waited · (1 - overlap)."""
        times = self.waited_by_axis
        return {axis: (1 - self.overlap.get(axis, 0)) * time for axis, time in times.items()}

    @property
    def exposed_seconds(self) -> float:
        """Time that is added to the step: the sum of `exposed_by_axis`."""
        return sum(self.exposed_by_axis.values())

    def _sums(self, value: str) -> dict[str, float]:
        """The sum of a property over the collectives of each axis."""
        totals: dict[str, float] = {}
        for entry in self.collectives:
            totals[entry.axis] = totals.get(entry.axis, 0.0) + getattr(entry, value)
        return totals

    def explain(self, unit: str = "GB") -> str:
        """One line per collective: how many, among how many, bytes sent per GPU, link and time."""
        lines = [
            f"{entry.axis:<3}{entry.what:<26}{entry.count:>7} x {entry.operation:<15}"
            f"among {entry.ranks:<6}{format_bytes(entry.total_bytes, unit):>10}"
            f"{entry.seconds:>11.4f} s  {entry.link.name}"
            for entry in self.collectives
        ]
        hidden = max(0.0, self.seconds - self.exposed_seconds)
        sent = format_bytes(self.total_bytes, unit)
        total = f"total {sent} sent per GPU, {self.seconds:.4f} s, of which {hidden:.4f} s hidden"
        return "\n".join([*lines, total])


check_public(globals())
