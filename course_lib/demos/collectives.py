"""Ring and tree all-reduce and other collectives from messages; this machine's α and β.

Every operation is compared bit by bit with gloo's or NCCL's; steps, messages and bytes are counted
and must be the theory's. The times of the ring give α and β, which predict all the others.
Run it with `course demo collectives --ranks 4`, with `--link-mbit 200` behind slow links, or under
torchrun.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch, mine
from course_lib.demos.shared.options import DemoOptions, option, whose_parts, with_yours
from course_lib.demos.shared.ranks import device_name, from_all_ranks
from course_lib.demos.shared.result import Fact, Result
from course_lib.measure.times import collective_seconds
from course_lib.measure.wire import log_wire
from course_lib.scratch import wire
from course_lib.scratch.collectives import Peers, SlowPeers, all_to_all, ring_all_reduce
from course_lib.theory.inputs.units import KIB, MIB, format_bytes
from course_lib.theory.network import collectives
from course_lib.theory.network.fitting import FittedLink, fit_alpha_beta
from course_lib.validation import choice, whole

NUMBER_BYTES = 4  # everything here is float32
HALVES = ("ring_reduce_scatter", "ring_all_gather")
BUILT = (*HALVES, "tree_all_reduce")  # parts that learners build
Scratch = Callable[[Tensor, Peers], Tensor]


class Operation(NamedTuple):
    """A collective: the theory's names, `scratch(parts)`, and the library's implementation."""

    kind: str
    algorithm: str
    scratch: Callable[[str], Scratch]
    library: Callable[[Tensor], Tensor]


def ring(parts: str) -> Scratch:
    """The course's ring all-reduce, or the learner's two halves."""
    if parts == "course":
        return ring_all_reduce
    reduce_scatter, all_gather = (mine.get(name, parts) for name in HALVES)

    def all_reduce(tensor: Tensor, peers: Peers) -> Tensor:
        whole: Tensor = all_gather(reduce_scatter(tensor, peers), peers, len(tensor))
        return whole

    return all_reduce


def _library_all_to_all(whole: Tensor) -> Tensor:
    arrived = torch.empty_like(whole)
    dist.all_to_all_single(arrived, whole)
    return arrived


RING, TREE = "ring-all-reduce", "tree-all-reduce"
OPERATIONS = {
    RING: Operation("all-reduce", "ring", ring, wire.all_reduce),
    TREE: Operation("all-reduce", "tree", partial(mine.get, "tree_all_reduce"), wire.all_reduce),
    "reduce-scatter": Operation(
        "reduce-scatter", "ring", partial(mine.get, HALVES[0]), wire.reduce_scatter
    ),
    "all-gather": Operation("all-gather", "ring", partial(mine.get, HALVES[1]), wire.all_gather),
    "all-to-all": Operation("all-to-all", "ring", lambda _: all_to_all, _library_all_to_all),
}


@dataclass(frozen=True)
class Options(DemoOptions):
    """The options of this demo."""

    operations: str = option("all", f"some of {','.join(OPERATIONS)}")
    smallest: int = option(
        KIB, "first size in bytes of the whole tensor", least=NUMBER_BYTES, most=2**32
    )
    largest: int = option(MIB, "last size in bytes")
    factor: int = option(4, "from one size to the next", least=2)
    repeats: int = option(
        10, "timed calls at each size, of which the fastest counts", least=1, most=10_000
    )
    times: bool = option(True, "measure times, not only what is sent")
    link_mbit: float = option(0.0, "slow each rank's link down to these Mbit/s; 0: do not", least=0)
    link_latency_us: float = option(
        0.0, "add this latency in µs to each message", least=0, most=1e7
    )
    seed: int = option(0, "seed of the numbers that are sent", least=0, most=2**31)
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.names:
            choice("operations", name, OPERATIONS)
        whole("largest", self.largest, least=self.smallest, most=2**32)

    @property
    def names(self) -> list[str]:
        """The operations that were asked for."""
        return list(OPERATIONS) if self.operations == "all" else self.operations.split(",")

    @property
    def slow(self) -> bool:
        """Whether links are throttled."""
        return self.link_mbit > 0 or self.link_latency_us > 0

    def sizes(self, ranks: int) -> list[int]:
        """Bytes from `smallest` to `largest`, each rounded up to a multiple of 4 · ranks."""
        steps = range(1 + int(math.log(self.largest / self.smallest, self.factor) + 1e-9))
        unit = NUMBER_BYTES * ranks
        sizes = [self.smallest * self.factor**step for step in steps]
        return list(dict.fromkeys(-(-size // unit) * unit for size in sizes))


@dataclass(frozen=True)
class Row:
    """One operation at one size: measured and predicted counts, and times.

    Steps are the rounds of the busiest rank; messages are summed over ranks; `sent_bytes` is by
    rank, and its prediction per rank (in a tree: on average). Seconds are None if not timed.
    """

    operation: str
    size_bytes: int
    equal: bool  # to the library, in every bit and on every rank
    steps: int
    predicted_steps: int
    messages: int
    predicted_messages: int
    sent_bytes: list[int]
    predicted_sent_bytes: float
    seconds: float | None = None
    library_seconds: float | None = None

    @property
    def even(self) -> bool:
        """Whether all ranks send the same number of bytes."""
        divides = self.size_bytes % (NUMBER_BYTES * len(self.sent_bytes)) == 0
        return divides and OPERATIONS[self.operation].algorithm == "ring"

    def facts(self) -> list[Fact]:
        """Facts to verify: equal to the library, and counts as predicted."""
        where, ranks = f"{self.operation} of {self.size_bytes} bytes", len(self.sent_bytes)
        total, library = round(ranks * self.predicted_sent_bytes), "the library's"
        facts = [
            Fact(f"{where}: the result", library if self.equal else f"not {library}", library),
            Fact(f"{where}: steps", self.steps, self.predicted_steps),
            Fact(f"{where}: messages", self.messages, self.predicted_messages),
            Fact(f"{where}: bytes of all ranks", sum(self.sent_bytes), total),
        ]
        if self.even:
            predicted = [round(self.predicted_sent_bytes)] * ranks
            facts.append(Fact(f"{where}: bytes by rank", self.sent_bytes, predicted))
        return facts

    def bus_bytes_per_s(self, ranks: int) -> float | None:
        """Bus bandwidth of the scratch version, None if it was not timed."""
        if not self.seconds:
            return None
        kind = OPERATIONS[self.operation].kind
        return collectives.bus_bandwidth(kind, self.size_bytes, ranks, self.seconds)


@dataclass(frozen=True)
class Fit:
    """α and β of one implementation's all-reduce, or the reason why the fit failed."""

    name: str
    link: FittedLink | None
    problem: str = ""

    def report(self) -> str:
        """One line: the fit, or the reason why it failed."""
        outcome = self.link.explain() if self.link else f"none, {self.problem}"
        return f"fit of {self.name}: {outcome}"


class Timed(Result):
    """All `rows`, an `uneven` all-reduce, and the fitted `fits` and `crossover_bytes`."""

    def of(self, operation: str) -> list[Row]:
        """The rows of one operation, by size."""
        return [row for row in self.rows if row.operation == operation]


_HEAD = (
    f"{'operation':<16}{'size':>10}{'steps':>6}{'messages':>9}{'B per rank':>12}"
    f"{'scratch ms':>11}{'library ms':>11}{'model ms':>11}{'bus MB/s':>11}"
)


def main(options: Options) -> Result:
    """Run every operation at every size; every rank returns the same result."""
    rank = launch.init()
    peers = _peers(options)
    sizes = options.sizes(rank.world)
    rows = [_row(name, size, peers, options) for name in options.names for size in sizes]
    uneven = _checked(RING, NUMBER_BYTES * (2 * rank.world - 1), peers, options)
    fits = _fits(rows, rank.world)
    crossover_bytes = _crossover(fits, options, rank.world)
    whose, device = with_yours(options.parts, *BUILT), device_name(rank.device)
    sent = ", ".join(str(size) for size in uneven.sent_bytes)
    return Timed(
        f"collectives: {rank.world} ranks, {rank.backend} on {device}{whose}",
        _HEAD,
        *(_line(row, fits, rank.world) for row in rows),
        "equal to the library in every bit; steps, messages and bytes as predicted in all "
        f"{len(rows)} rows",
        f"uneven: an all-reduce of {uneven.size_bytes} bytes: the ranks send {sent}, in all "
        f"{sum(uneven.sent_bytes)} as predicted",
        *_link_lines(options),
        *(fit.report() for fit in fits),
        *_crossover_lines(rows, crossover_bytes, rank.world),
        facts=[fact for row in (*rows, uneven) for fact in row.facts()],
        ranks=rank.world,
        rows=rows,
        uneven=uneven,
        fits=fits,
        crossover_bytes=crossover_bytes,  # from the ring's fit: below it the tree should be faster
        whose=whose,
        backend=rank.backend,
    )


def model_seconds(row: Row, fits: Sequence[Fit], ranks: int) -> float | None:
    """Seconds that the ring all-reduce's fit predicts for a row; None without a fit."""
    link = next((fit.link for fit in fits if fit.name == RING), None)
    if link is None:
        return None
    operation = OPERATIONS[row.operation]
    return collectives.seconds(
        operation.kind, row.size_bytes, ranks, link.link, algorithm=operation.algorithm
    )


def _line(row: Row, fits: Sequence[Fit], ranks: int) -> str:
    bus = row.bus_bytes_per_s(ranks)
    times = (row.seconds, row.library_seconds, model_seconds(row, fits, ranks))
    return (
        f"{row.operation:<16}{format_bytes(row.size_bytes, 'GiB', 1):>10}{row.steps:>6}"
        f"{row.messages:>9}{sum(row.sent_bytes) / ranks:>12,.0f}"
        + "".join(f"{'-' if time is None else f'{1000 * time:.3f}':>11}" for time in times)
        + f"{'-' if bus is None else f'{bus / 1e6:,.1f}':>11}"
    )


def _link_lines(options: Options) -> list[str]:
    if not options.slow:
        return []
    rate = "as fast as the machine"
    if options.link_mbit:
        rate = f"{options.link_mbit / 8:g} MB/s one way"
    return [f"links slowed down to: {options.link_latency_us:g} µs a message, {rate}"]


def _crossover_lines(rows: Sequence[Row], crossover: float | None, ranks: int) -> list[str]:
    if crossover is None:
        return []
    ring, tree = (_seconds([row for row in rows if row.operation == name]) for name in (RING, TREE))
    won = [size for size in ring if tree[size] < ring[size]]
    sizes = ", ".join(format_bytes(size, "GiB", 1) for size in won) or "no size"
    below = f"below {format_bytes(crossover, 'GiB', 1)}"
    if crossover == 0:
        below = f"at no size, since it saves no step on {ranks} ranks"
    return [f"ring or tree: by the fit the tree is faster {below}; measured, it was at {sizes}"]


def _peers(options: Options) -> Peers:
    if not options.slow:
        return Peers()
    return SlowPeers(options.link_mbit * 1e6 / 8 or math.inf, options.link_latency_us / 1e6)


def _row(name: str, size_bytes: int, peers: Peers, options: Options) -> Row:
    row = _checked(name, size_bytes, peers, options)
    if not options.times:
        return row
    operation, device = OPERATIONS[name], launch.init().device
    tensor = _argument(operation, size_bytes, options.seed)
    scratch = operation.scratch(options.parts)
    seconds = collective_seconds(lambda: scratch(tensor, peers), options.repeats, device)
    # The library's links are not throttled, so its times would not be comparable.
    library_seconds = None
    if not options.slow:
        library_seconds = collective_seconds(
            lambda: operation.library(tensor), options.repeats, device
        )
    return replace(row, seconds=seconds, library_seconds=library_seconds)


def _checked(name: str, size_bytes: int, peers: Peers, options: Options) -> Row:
    """Make one call, compare the result with the library's, and count what it sends."""
    operation, ranks = OPERATIONS[name], peers.ranks
    tensor = _argument(operation, size_bytes, options.seed)
    scratch = operation.scratch(options.parts)
    before = peers.rounds
    with log_wire() as log:
        ours = scratch(tensor, peers)
    messages, sent_bytes = log.sent().get("send-recv", (0, 0))
    equal = torch.equal(ours, operation.library(tensor))
    results = from_all_ranks((peers.rounds - before, messages, sent_bytes, equal))
    rounds, counts, sizes, equals = zip(*results, strict=True)
    return Row(
        operation=name,
        size_bytes=size_bytes,
        equal=all(equals),
        steps=max(rounds),
        predicted_steps=collectives.steps(operation.kind, ranks, operation.algorithm),
        messages=sum(counts),
        predicted_messages=collectives.messages(operation.kind, ranks, operation.algorithm),
        sent_bytes=list(sizes),
        predicted_sent_bytes=collectives.sent_bytes(operation.kind, size_bytes, ranks),
    )


def _argument(operation: Operation, size_bytes: int, seed: int) -> Tensor:
    """This rank's input; integers, whose sums do not depend on the order of addition."""
    rank = launch.init()
    generator = torch.Generator().manual_seed(seed + rank.rank)
    count = size_bytes // NUMBER_BYTES
    if operation.kind == "all-gather":
        count //= rank.world  # the size is that of the result
    return torch.randint(-100, 101, (count,), generator=generator).float().to(rank.device)


def _seconds(rows: list[Row]) -> dict[int, float]:
    """{size: seconds} of the rows that were timed."""
    return {row.size_bytes: row.seconds for row in rows if row.seconds is not None}


def _fits(rows: list[Row], ranks: int) -> list[Fit]:
    """Fit α and β to the ring all-reduce, and to the library's by the same formula."""
    ring = [row for row in rows if row.operation == RING]
    library = [replace(row, seconds=row.library_seconds) for row in ring]
    times = {RING: _seconds(ring), "the library's all-reduce": _seconds(library)}
    fits = []
    for name, seconds in times.items():
        if seconds and ranks > 1:
            try:
                link = fit_alpha_beta("all-reduce", list(seconds), list(seconds.values()), ranks)
                fits.append(Fit(name, link))
            except ValueError as problem:  # a busy machine, or a single size
                fits.append(Fit(name, None, str(problem)))
    return fits


def _crossover(fits: list[Fit], options: Options, ranks: int) -> float | None:
    """The size in bytes at which ring and plain tree take equal time by the ring's α and β."""
    if not fits or fits[0].link is None or TREE not in options.names:
        return None
    link = fits[0].link.link
    return collectives.crossover_bytes("all-reduce", ranks, link, tree="tree", efficiency=1.0)
