"""Collectives of a training step: what is sent, how often, how many bytes, for how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from course_lib.theory import collectives
from course_lib.theory.hardware import Cluster, Link
from course_lib.theory.units import MIB, format_bytes
from course_lib.theory.validation import choice, flag, number, whole

# The parallel degrees of a layout that communicate, innermost first.
AXES = ("tp", "cp", "ep", "dp", "pp")

# torch's DistributedDataParallel: the first bucket is small so that sending starts early
# (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES), the others have bucket_cap_mb = 25.
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_CAP_BYTES = 25 * MIB


def gradient_syncs(micro_steps: int, accumulation: int, no_sync: bool) -> int:
    """Backward passes that all-reduce the gradients.

    Every one without no_sync; with it only the last of each accumulation window:
    ceil(micro_steps / accumulation).
    """
    whole("micro_steps", micro_steps)
    whole("accumulation", accumulation)
    flag("no_sync", no_sync)
    return -(-micro_steps // accumulation) if no_sync else micro_steps


def ddp_buckets(
    gradient_bytes: Sequence[int],
    cap_bytes: int = BUCKET_CAP_BYTES,
    first_bytes: int = FIRST_BUCKET_BYTES,
) -> list[int]:
    """Bytes in each bucket, for gradients in the order in which backward makes them.

    A bucket is closed as soon as it holds at least its limit: `first_bytes` for the first,
    `cap_bytes` for the others. One bucket is one all-reduce. Where a program names a
    `bucket_cap_mb`, torch takes it for the first bucket too: pass it as both.
    Source: Li et al. 2020, arXiv:2006.15704, section 3.2; torch's reducer.cpp.
    """
    whole("cap_bytes", cap_bytes)
    whole("first_bytes", first_bytes)
    buckets, size = [], 0
    for count, piece in enumerate(gradient_bytes):
        whole(f"gradient_bytes[{count}]", piece)
        size += piece
        if size >= (cap_bytes if buckets else min(first_bytes, cap_bytes)):
            buckets.append(size)
            size = 0
    return [*buckets, size] if size else buckets


def ddp_all_reduces(syncs: int, buckets: int) -> int:
    """All-reduces of a whole DDP run: one in the first synchronised backward, then one a bucket.

    DDP starts with a single bucket, learns in that pass in which order the gradients arrive, and
    then forms its buckets (torch 2.13, `static_graph` or `find_unused_parameters=False`).
    """
    whole("syncs", syncs)
    whole("buckets", buckets)
    return 1 + (syncs - 1) * buckets


@dataclass(frozen=True)
class Collective:
    """One kind of call in a step: `count` times `operation` on `size_bytes` among `ranks` GPUs.

    `what` says which tensor, `size_bytes` is the whole tensor as in `collectives`.
    """

    axis: str
    what: str
    operation: str
    count: int
    size_bytes: float
    ranks: int
    link: Link
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        choice("axis", self.axis, AXES)
        choice("operation", self.operation, collectives.OPERATIONS)
        choice("algorithm", self.algorithm, collectives.ALGORITHMS)
        whole("count", self.count, least=0)
        whole("ranks", self.ranks)
        number("size_bytes", self.size_bytes, least=0)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one GPU sends in one call."""
        return collectives.sent_bytes(self.operation, self.size_bytes, self.ranks)

    @property
    def total_bytes(self) -> float:
        """Bytes that one GPU sends in a step: count · sent_bytes."""
        return self.count * self.sent_bytes

    @property
    def seconds(self) -> float:
        """Time of all calls, one after the other: count · (steps · α + sent / β)."""
        trees = self.operation in ("all-reduce", "broadcast", "reduce")
        return self.count * collectives.seconds(
            self.operation,
            self.size_bytes,
            self.ranks,
            self.link.latency_s,
            self.link.bytes_per_s,
            self.algorithm if trees else "ring",
        )


@dataclass(frozen=True)
class Traffic:
    """Every collective of one training step on one GPU; totals are properties.

    `overlap`: the part of an axis' time that hides behind computation, {"dp": 0.9}; 0 where absent.
    Raises ValueError for another axis or a part outside 0..1.
    """

    collectives: tuple[Collective, ...]
    overlap: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis, part in self.overlap.items():
            choice("overlap axis", axis, AXES)
            number(f"overlap[{axis!r}]", part, least=0)
            if part > 1:
                raise ValueError(f"overlap[{axis!r}] must be at most 1, got {part}: 0.8 is 80 %")

    @property
    def total_bytes(self) -> float:
        """Bytes that the GPU sends in a step."""
        return sum(entry.total_bytes for entry in self.collectives)

    @property
    def bytes_by_axis(self) -> dict[str, float]:
        """Bytes sent for each axis that communicates."""
        return self._sums("axis", "total_bytes")

    @property
    def bytes_by_link(self) -> dict[str, float]:
        """Bytes sent in groups whose slowest link has this name."""
        totals: dict[str, float] = {}
        for entry in self.collectives:
            totals[entry.link.name] = totals.get(entry.link.name, 0.0) + entry.total_bytes
        return totals

    @property
    def seconds(self) -> float:
        """Time of all collectives, none hidden and none at the same time as another."""
        return sum(entry.seconds for entry in self.collectives)

    @property
    def seconds_by_axis(self) -> dict[str, float]:
        """Time of each axis' collectives, not hidden."""
        return self._sums("axis", "seconds")

    @property
    def exposed_by_axis(self) -> dict[str, float]:
        """Time of each axis that computation does not hide: seconds · (1 - overlap)."""
        times = self.seconds_by_axis
        return {axis: (1 - self.overlap.get(axis, 0)) * time for axis, time in times.items()}

    @property
    def exposed_seconds(self) -> float:
        """Time that is added to the step: the sum of `exposed_by_axis`."""
        return sum(self.exposed_by_axis.values())

    def _sums(self, key: str, value: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for entry in self.collectives:
            name = getattr(entry, key)
            totals[name] = totals.get(name, 0.0) + getattr(entry, value)
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


def group_link(cluster: Cluster, operation: str, ranks: int, stride: int = 1) -> Link:
    """The link as one GPU of a group sees it: ranks r, r + stride, … with `ranks` members.

    Within a node: the inner link. Over k nodes with g members in each, each member next to its own
    network port: rings use all g ports of the group, min(inside, g · between); in all-to-all only
    (n-g)/(n-1) of the bytes leave the node, min(inside, between · (n-1)/(n-g)); send/recv has one
    port. Of the n-1 steps of a ring k-1 cross the network, and the latency is their mean.
    Source: NCCL, src/graph/tuning.cc (nInterSteps); Bekman, Machine Learning Engineering, network.
    """
    choice("operation", operation, collectives.OPERATIONS)
    slowest = cluster.link(ranks, stride)
    if slowest == cluster.inside or operation == "send-recv":
        return slowest
    members = min(ranks, max(1, cluster.gpus_per_node // stride))
    crossing = (-(-ranks // members) - 1) / (ranks - 1)
    latency = cluster.inside.latency_s + crossing * (slowest.latency_s - cluster.inside.latency_s)
    ports = members
    if operation == "all-to-all":
        ports = (ranks - 1) / (ranks - members) if ranks > members else 1
    rate = min(cluster.inside.bytes_per_s, ports * slowest.bytes_per_s)
    return Link(slowest.name, rate, latency)


def saved_fraction(before_s: float, after_s: float) -> float:
    """Part of the time that is gone: (before - after) / before; 0.265 is 26.5 % less time.

    What YaFSDP's benchmarks call speedup (github.com/yandex/YaFSDP, README).
    """
    number("before_s", before_s, above=0)
    number("after_s", after_s, above=0)
    return (before_s - after_s) / before_s


def throughput_gain(before_s: float, after_s: float) -> float:
    """More work in the same time: before / after - 1; 26.5 % less time is 36 % more throughput."""
    number("before_s", before_s, above=0)
    number("after_s", after_s, above=0)
    return before_s / after_s - 1
