"""DDP training with gradient accumulation, proven equal to one process.

A small GPT on real text: each rank takes its own samples; DistributedDataParallel, and then DDP
written out (scratch/replicas/ddp.py), average the gradients. One process trains the same model on
all samples, to prove them equal.
Run it with `course demo ddp --ranks 2`, or under torchrun.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from course_lib import launch, mine
from course_lib.demos.shared.batch import Batch, both
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE as TOLERANCE
from course_lib.demos.shared.comparison import check_gap, tensor_gap
from course_lib.demos.shared.options import MicroBatchOptions, option
from course_lib.demos.shared.parts import WHOSE, with_yours
from course_lib.demos.shared.ranks import device_name, from_all_ranks
from course_lib.demos.shared.text import Windows
from course_lib.demos.shared.training import OneProcess, gradients_of, one_process
from course_lib.measure.collectives import BucketLog, log_buckets
from course_lib.scratch.collectives.peers import Peers
from course_lib.scratch.replicas.buckets import AllReduce
from course_lib.scratch.replicas.ring_sum import RingSum
from course_lib.scratch.wire import Work, start_all_reduce
from course_lib.theory.inputs.units import MIB
from course_lib.theory.network.buckets import (
    BUCKET_CAP_BYTES,
    FIRST_BUCKET_BYTES,
    ddp_all_reduces,
    ddp_buckets,
    gradient_syncs,
)
from course_lib.theory.step.batching import Batching
from course_lib.validation import choice, number, whole


@dataclass(frozen=True)
class Options(MicroBatchOptions):
    """What the demo can be asked for."""

    steps: int = option(30, "optimizer updates")
    accumulation: int = option(2, "micro-batches in one update")
    no_sync: bool = option(True, "exchange gradients only in the last micro-batch of an update")
    compare: bool = option(True, "train the same model as one process beside it")
    sequence: int = option(64, "characters in a sample")
    bucket_cap_mb: float = option(0.0, "limit of a bucket in MiB; 0: torch's 1 MiB, then 25 MiB")
    seed: int = option(0, "seed of the weights and the shuffle")
    parts: str = option("course", "whose parts run: course, or mine where they are built")

    def __post_init__(self) -> None:
        whole("accumulation", self.accumulation, most=100_000)
        number("bucket_cap_mb", self.bucket_cap_mb, least=0)
        choice("parts", self.parts, WHOSE)
        super().__post_init__()

    def bucket_limits(self) -> tuple[int, int]:
        """Bytes at which a bucket is closed, and at which the first one is."""
        cap = round(self.bucket_cap_mb * MIB)
        return (cap, cap) if cap else (BUCKET_CAP_BYTES, FIRST_BUCKET_BYTES)


@dataclass(frozen=True)
class Run:
    """What one version of DDP did; bytes and calls of one rank."""

    losses: list[float]  # mean over all tokens of all ranks, one per update
    gradient_difference: float | None  # |g_ddp - g_one| / |g_one| at the first update
    all_reduces: int
    predicted_all_reduces: int
    all_reduced_bytes: int
    bucket_bytes: list[int]  # of the last exchange
    seconds: float

    def findings(self) -> list[str]:
        """One line on the all-reduces, one on the gradient."""
        buckets = ", ".join(f"{size:,}" for size in self.bucket_bytes)
        lines = [
            f"all-reduces: predicted {self.predicted_all_reduces}, counted {self.all_reduces}, "
            f"{self.all_reduced_bytes:,} bytes; the last exchange: {buckets or 'nothing'}"
        ]
        if self.all_reduces > self.predicted_all_reduces:
            lines.append(
                f"it sends more than it must: {self.all_reduces - self.predicted_all_reduces} "
                "all-reduces are too many"
            )
        if self.gradient_difference is not None:
            lines.append(
                f"gradient against one process: relative difference "
                f"{self.gradient_difference:.1e} (tolerance {TOLERANCE:.0e})"
            )
        return lines


@dataclass(frozen=True)
class Result(Run):
    """What DistributedDataParallel did, beside one process and DDP written out."""

    ranks: int
    backend: str
    device: str
    credit: str  # ", with your accumulate_ddp" where that has run
    losses_one_process: list[float]  # empty without `compare`
    gradient_bytes: int  # sent by one exchange: 4 bytes per parameter
    predicted_bucket_bytes: list[int]
    scratch: Run
    scratch_name: str

    def report(self) -> str:
        """The findings, one a line."""
        return "\n".join(
            [
                f"{self.ranks} ranks, {self.backend} on {self.device}: {len(self.losses)} updates "
                f"in {self.seconds:.2f} s, loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}"
                f"{self.credit}",
                *self.findings(),
                f"the same with {self.scratch_name}:",
                *(f"  {line}" for line in self.scratch.findings()),
            ]
        )


def main(options: Options) -> Result:
    """Train for `options.steps` updates; every rank returns the same losses and counts."""
    rank = launch.init()
    one = None
    if options.compare:
        batches = _whole_batches(rank, options)
        one = one_process(options.training(), rank.device, batches=batches)
    library = _train(_Library(rank, options), rank, options, one)
    by_hand = _Scratch(rank, options)
    scratch = _train(by_hand, rank, options, one)
    gradient_bytes = _gradient_bytes(options)
    return Result(
        **vars(library),
        ranks=rank.world,
        backend=rank.backend,
        device=device_name(rank.device),
        credit=with_yours(options.parts, "accumulate_ddp"),
        losses_one_process=one.losses if one else [],
        gradient_bytes=sum(gradient_bytes),
        predicted_bucket_bytes=ddp_buckets(gradient_bytes, *options.bucket_limits()),
        scratch=scratch,
        scratch_name=by_hand.name,
    )


def predict_all_reduces(options: Options, gradient_bytes: Sequence[int]) -> int:
    """All-reduces of gradients that DistributedDataParallel makes in the whole run."""
    buckets = ddp_buckets(gradient_bytes, *options.bucket_limits())
    return ddp_all_reduces(_syncs(options), len(buckets))


def _syncs(options: Options) -> int:
    micro_steps = options.steps * options.accumulation
    return gradient_syncs(micro_steps, options.accumulation, options.no_sync)


def _gradient_bytes(options: Options) -> list[int]:
    """Bytes of each gradient, in the order in which backward makes them."""
    return [p.nbytes for p in reversed(list(options.training().build().parameters()))]


class _Version(ABC):
    """A model that DDP trains; writes down what is sent."""

    name: str
    log: BucketLog
    buckets: int  # of one exchange
    predicted: int  # all-reduces of the whole run

    def __init__(self, rank: launch.Rank, options: Options) -> None:
        self.model = options.training().build(rank.device)
        self.accumulate_ddp = mine.get("accumulate_ddp", options.parts)

    @abstractmethod
    def accumulate(self, window: Sequence[Batch], no_sync: bool) -> Tensor:
        """Forward and backward passes of one update; returns the mean loss of all ranks."""


class _Library(_Version):
    """DistributedDataParallel; its communication hook writes down what it sends."""

    name = "DistributedDataParallel"

    def __init__(self, rank: launch.Rank, options: Options) -> None:
        super().__init__(rank, options)
        # Given a cap, torch takes it for the first bucket too; without one it has 1 and 25 MiB.
        cap_mb = options.bucket_cap_mb or None
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=cap_mb)
        self.log = log_buckets(self.ddp)
        gradient_bytes = _gradient_bytes(options)
        self.predicted = predict_all_reduces(options, gradient_bytes)
        self.buckets = len(ddp_buckets(gradient_bytes, *options.bucket_limits()))

    def accumulate(self, window: Sequence[Batch], no_sync: bool) -> Tensor:
        loss: Tensor = self.accumulate_ddp(self.ddp, window, no_sync)
        return loss


class _Scratch(_Version):
    """DDP written out: it has its buckets from the first exchange on."""

    def __init__(self, rank: launch.Rank, options: Options) -> None:
        super().__init__(rank, options)
        parts = options.parts
        self.name = f"DDP by hand{with_yours(parts, 'DDP', *_RING)}"
        self.start = _ring(parts) if with_yours(parts, *_RING) else start_all_reduce
        limits = options.bucket_limits()
        self.ddp = mine.get("DDP", parts)(self.model, *limits, all_reduce=self._all_reduce)
        self.log = BucketLog()
        predicted = ddp_buckets(_gradient_bytes(options), *limits)
        self.buckets = len(predicted)
        # One rank sends nothing.
        self.counts = rank.world > 1
        self.predicted = _syncs(options) * len(predicted) if self.counts else 0

    def _all_reduce(self, flat: Tensor) -> Work:
        if self.counts:
            self.log.bucket_bytes.append(flat.nbytes)
        return self.start(flat)

    def accumulate(self, window: Sequence[Batch], no_sync: bool) -> Tensor:
        loss: Tensor = self.accumulate_ddp(self.ddp, window, no_sync)
        return loss


_RING = ("ring_reduce_scatter", "ring_all_gather")


def _ring(parts: str) -> AllReduce:
    """An all-reduce by the ring of the learner."""
    reduce_scatter, all_gather = (mine.get(name, parts) for name in _RING)
    return partial(RingSum, peers=Peers(), reduce_scatter=reduce_scatter, all_gather=all_gather)


def _train(version: _Version, rank: launch.Rank, options: Options, one: OneProcess | None) -> Run:
    """Train one version; AssertionError if its first gradient is not that of one process."""
    optimizer = options.training().optimizer(version.model.parameters())
    losses: list[float] = []
    difference = None
    start = time.perf_counter()
    for window in _updates(rank, options):
        window = [both(lambda part: part.to(rank.device), batch) for batch in window]
        losses.append(float(version.accumulate(window, options.no_sync)))
        if one and difference is None:
            difference = tensor_gap(gradients_of(version.model), one.gradients)
            check_gap(f"{version.name}: the gradient", difference, TOLERANCE)
        optimizer.step()
        optimizer.zero_grad()
        launch.report_step(len(losses), options.steps)
    return Run(
        losses=losses,
        gradient_difference=difference,
        all_reduces=version.log.all_reduces,
        predicted_all_reduces=version.predicted,
        all_reduced_bytes=version.log.total_bytes,
        bucket_bytes=version.log.bucket_bytes[-version.buckets :],
        seconds=time.perf_counter() - start,
    )


def _whole_batches(rank: launch.Rank, options: Options) -> Iterator[Batch]:
    """The samples of all ranks in each update, as one process would see them."""
    for window in _updates(rank, options):
        batches = [batch for one in from_all_ranks(window) for batch in one]
        inputs, labels = zip(*batches, strict=True)
        yield torch.cat(inputs), torch.cat(labels)


def _updates(rank: launch.Rank, options: Options) -> Iterator[list[Batch]]:
    """The windows of `accumulation` micro-batches of all updates, over as many epochs as needed."""
    return itertools.islice(_endless(rank, options), options.steps)


def _endless(rank: launch.Rank, options: Options) -> Iterator[list[Batch]]:
    """Windows of endless epochs; samples that fill no window are dropped."""
    windows = Windows(options.sequence)
    sizes = (len(windows), options.micro_batch, options.accumulation)
    epoch = Batching(*sizes, gpus_per_node=rank.world, drop_last=True).epoch()
    sampler: DistributedSampler[Batch] = DistributedSampler(
        windows, seed=options.seed, drop_last=True
    )
    loader = DataLoader(windows, options.micro_batch, sampler=sampler, drop_last=True)
    for pass_number in itertools.count():
        sampler.set_epoch(pass_number)
        batches = iter(loader)
        for _ in range(epoch.updates):
            yield [next(batches) for _ in range(options.accumulation)]
