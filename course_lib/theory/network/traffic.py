"""Communication of a training step: policies of frameworks, links of groups, and collectives."""

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
    """Communication choices in which frameworks differ.

    `bucket_bytes`: bucket size for gradients of ZeRO stages 0 to 2 and for parameters of stages 1
    and 2. `algorithm`: all-reduce algorithm, "ring", "tree" or "double-tree". `token_nodes`: None
    sends a token once for each of its experts; a number sends it over the network once to each node
    that has some of them, at most that many nodes, and forwards it there over the inner link,
    overlapped, once to each rank (DeepSeek-V3, arXiv:2412.19437, sections 2.1.2 and 3.2.2: 4 nodes;
    DeepEP).
    """

    bucket_bytes: Count = BUCKET_CAP_BYTES
    algorithm: Annotated[str, ALGORITHMS] = "ring"
    token_nodes: Count | None = None


# --- The effective link of a group of ranks, within a node or across nodes ---


def group_link(cluster: Cluster, operation: Operation, ranks: int, stride: int = 1) -> Link:
    """Effective link per GPU of a group of `ranks` members r, r + stride, r + 2·stride, …

    Within a node it is the inner link. Across k nodes with g members each, every member has its own
    network port: rings use all g ports of the group, min(inside, g · between); in all-to-all only
    (n-g)/(n-1) of the bytes leave the node, min(inside, between · (n-1)/(n-g)); send/recv uses one
    port. Of the n-1 steps of a ring k-1 cross the network; the latency is the mean over the steps.
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


# --- Collectives of a training step: tensors, counts, bytes and times ---

# The parallel degrees of a layout that communicate, innermost first.
AXES = ("tp", "cp", "ep", "dp", "pp")
Axis = Annotated[str, AXES]
Part = Annotated[float, partial(number, least=0, most=1)]
# The kind of tensor in a message, and the part of the model that it belongs to.
KINDS = ("activations", "gradients", "parameters")
PLACES = ("layers", "experts", "embedding", "head", "ends")


@dataclass(frozen=True)
class Collective:
    """`count` calls of `operation` in a step, on `size_bytes` among `ranks` GPUs.

    `what` describes the tensor, `kind` is one of KINDS and `place`, the part of the model, one of
    PLACES; `size_bytes` is the whole tensor as in `collectives`. `hidden`: always overlapped with
    computation. `alone`: number of calls with no computation to overlap with, such as the first
    gather of a pass and its last reduction.
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
        """Bytes that one GPU sends per call."""
        return collectives.sent_bytes(self.operation, self.size_bytes, self.ranks)

    @property
    def total_bytes(self) -> float:
        """Bytes that one GPU sends in a step: count · sent_bytes."""
        return self.count * self.sent_bytes

    @cached_property
    def seconds(self) -> float:
        """Seconds of all calls without overlap: count · (steps · α + sent / β)."""
        sizes = (self.operation, self.size_bytes, self.ranks, self.link)
        supported = self.operation in ALGORITHMS[self.algorithm].operations
        algorithm = self.algorithm if supported else "ring"
        return self.count * collectives.seconds(*sizes, algorithm=algorithm)

    @property
    def waited_s(self) -> float:
        """Seconds that computation may have to wait for: all, or 0 if `hidden`."""
        return 0.0 if self.hidden else self.seconds

    @property
    def hideable_s(self) -> float:
        """Seconds that computation can hide: all calls except the `alone` ones."""
        return self.waited_s * self._hideable_fraction

    @property
    def hideable_bytes(self) -> float:
        """Bytes that the GPU sends in `hideable_s`."""
        return 0.0 if self.hidden else self.total_bytes * self._hideable_fraction

    @property
    def _hideable_fraction(self) -> float:
        return 1 - self.alone / self.count if self.alone else 1.0


@dataclass(frozen=True)
class Traffic:
    """Every collective of one training step on one GPU; totals are properties.

    `overlap`: fraction of an axis' time hidden behind computation, {"dp": 0.9}; absent means 0.
    """

    collectives: tuple[Collective, ...]
    overlap: Mapping[Axis, Part] = field(default_factory=dict)

    @property
    def total_bytes(self) -> float:
        """Bytes that the GPU sends per step."""
        return sum(entry.total_bytes for entry in self.collectives)

    @property
    def bytes_by_axis(self) -> dict[str, float]:
        """Bytes sent along each axis that communicates."""
        return self._sums("total_bytes")

    @property
    def seconds(self) -> float:
        """Seconds of all collectives if run one after another without overlap."""
        return sum(entry.seconds for entry in self.collectives)

    @property
    def waited_by_axis(self) -> dict[str, float]:
        """Seconds of each axis' collectives, without those that are always `hidden`."""
        return self._sums("waited_s")

    @property
    def hideable_by_axis(self) -> dict[str, tuple[float, float]]:
        """(seconds that computation can hide, bytes sent in them) by axis."""
        times, sent = self._sums("hideable_s"), self._sums("hideable_bytes")
        return {axis: (time, sent[axis]) for axis, time in times.items()}

    @property
    def exposed_by_axis(self) -> dict[str, float]:
        """Seconds of each axis not hidden by computation: waited · (1 - overlap)."""
        times = self.waited_by_axis
        return {axis: (1 - self.overlap.get(axis, 0)) * time for axis, time in times.items()}

    @property
    def exposed_seconds(self) -> float:
        """Seconds that communication adds to the step: the sum of `exposed_by_axis`."""
        return sum(self.exposed_by_axis.values())

    def _sums(self, value: str) -> dict[str, float]:
        """Sum of the property `value` over the collectives of each axis."""
        totals: dict[str, float] = {}
        for entry in self.collectives:
            totals[entry.axis] = totals.get(entry.axis, 0.0) + getattr(entry, value)
        return totals

    def explain(self, unit: str = "GB") -> str:
        """One line per collective: count, ranks, bytes sent per GPU, time and link."""
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
