"""DDP training with gradient accumulation, proven equal to one process.

A small GPT on real text: each rank takes its own samples; DistributedDataParallel, and then DDP
written out (scratch/ddp.py), average the gradients. One process trains the same model on
all samples, to prove them equal.
Run it with `course demo ddp --ranks 2`, or under torchrun.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from course_lib import launch, mine
from course_lib.demos.collectives import HALVES
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE as TOLERANCE
from course_lib.demos.shared.comparison import tensor_gap
from course_lib.demos.shared.options import MicroBatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.ranks import device_name, from_all_ranks
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.text import Windows
from course_lib.demos.shared.training import Batch, OneProcess, both, gradients_of, one_process
from course_lib.measure.wire import BucketLog, log_buckets
from course_lib.scratch.collectives import Peers
from course_lib.scratch.ddp import AllReduce, RingSum
from course_lib.scratch.gpt import GPT
from course_lib.scratch.wire import Work, start_all_reduce
from course_lib.theory.inputs.units import MIB
from course_lib.theory.network.bucket_timeline import (
    BUCKET_CAP_BYTES,
    FIRST_BUCKET_BYTES,
    ddp_all_reduces,
    ddp_buckets,
    gradient_syncs,
)
from course_lib.theory.step.batching import Batching


@dataclass(frozen=True)
class Options(MicroBatchOptions):
    """The options of this demo."""

    steps: int = option(30, "optimizer updates")
    accumulation: int = option(2, "micro-batches in one update", least=1, most=100_000)
    no_sync: bool = option(True, "exchange gradients only in the last micro-batch of an update")
    compare: bool = option(True, "train the same model as one process beside it")
    sequence: int = option(64, "characters in a sample")
    bucket_cap_mb: float = option(
        0.0, "limit of a bucket in MiB; 0: torch's 1 MiB, then 25 MiB", least=0
    )
    seed: int = option(0, "seed of the weights and the shuffle")
    parts: str = whose_parts()

    def bucket_limits(self) -> tuple[int, int]:
        """Bytes at which a bucket is closed: (every later one, the first one)."""
        cap = round(self.bucket_cap_mb * MIB)
        return (cap, cap) if cap else (BUCKET_CAP_BYTES, FIRST_BUCKET_BYTES)

    def buckets(self) -> list[int]:
        """Bytes of each bucket in the order of backward; 4 per parameter in all."""
        sizes = [p.nbytes for p in self.training().build().parameters()]
        return ddp_buckets(sizes[::-1], *self.bucket_limits())

    def syncs(self) -> int:
        """The number of gradient synchronizations in the whole run."""
        return gradient_syncs(self.steps * self.accumulation, self.accumulation, self.no_sync)


@dataclass(frozen=True)
class Run:
    """The measurements of one version of DDP; bytes and calls of one rank."""

    losses: list[float]  # mean over all tokens of all ranks, one per update
    gradient_difference: float | None  # |g_ddp - g_one| / |g_one| at the first update
    all_reduces: int
    predicted_all_reduces: int
    all_reduced_bytes: int
    bucket_bytes: list[int]  # of the last exchange
    seconds: float

    def findings(self) -> list[str]:
        """Report lines on the all-reduces and the gradient."""
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


def main(options: Options) -> Result:
    """Train for `options.steps` updates; every rank returns the same losses and counts."""
    rank = launch.init()
    one = None
    if options.compare:
        batches = _whole_batches(rank, options)
        one = one_process(options.training(), rank.device, batches=batches)
    versions = library(rank, options), by_hand(rank, options)
    runs = found, scratch = [_train(version, rank, options, one) for version in versions]
    names, device = [version.name for version in versions], device_name(rank.device)
    return Result(
        f"{rank.world} ranks, {rank.backend} on {device}: {len(found.losses)} updates in "
        f"{found.seconds:.2f} s, loss {found.losses[0]:.3f} -> {found.losses[-1]:.3f}"
        + with_yours(options.parts, "accumulate_ddp"),
        *found.findings(),
        f"the same with {names[1]}:",
        *(f"  {line}" for line in scratch.findings()),
        facts=[
            Fact(f"{name}: the gradient", run.gradient_difference, tolerance=TOLERANCE)
            for name, run in zip(names, runs, strict=True)
            if one
        ],
        **vars(found),
        ranks=rank.world,
        losses_one_process=one.losses if one else [],
        gradient_bytes=sum(options.buckets()),  # of one exchange
        predicted_bucket_bytes=options.buckets(),
        scratch=scratch,
        scratch_name=names[1],
    )


class Version(NamedTuple):
    """A model under DDP, its log of buckets, and the predicted number of all-reduces."""

    name: str
    model: GPT
    ddp: Any
    log: BucketLog
    predicted: int


def library(rank: launch.Rank, options: Options) -> Version:
    """torch's DistributedDataParallel, with a communication hook that logs its buckets."""
    model = options.training().build(rank.device)
    # torch applies a given cap to the first bucket too; its defaults are 1 and 25 MiB.
    ddp = DistributedDataParallel(model, bucket_cap_mb=options.bucket_cap_mb or None)
    predicted = ddp_all_reduces(options.syncs(), len(options.buckets()))
    return Version("DistributedDataParallel", model, ddp, log_buckets(ddp), predicted)


def by_hand(rank: launch.Rank, options: Options) -> Version:
    """DDP from scratch; unlike torch's, its buckets are final from the first exchange on."""
    parts, limits, log = options.parts, options.bucket_limits(), BucketLog()
    start = _ring(parts) if with_yours(parts, *HALVES) else start_all_reduce

    def all_reduce(flat: Tensor) -> Work:
        if rank.world > 1:  # one rank sends nothing
            log.bucket_bytes.append(flat.nbytes)
        return start(flat)

    model = options.training().build(rank.device)
    ddp = mine.get("DDP", parts)(model, *limits, all_reduce=all_reduce)
    predicted = options.syncs() * len(options.buckets()) * (rank.world > 1)
    return Version(f"DDP by hand{with_yours(parts, 'DDP', *HALVES)}", model, ddp, log, predicted)


def _ring(parts: str) -> AllReduce:
    """An all-reduce built from the learner's two ring halves."""
    reduce_scatter, all_gather = (mine.get(name, parts) for name in HALVES)
    return partial(RingSum, peers=Peers(), reduce_scatter=reduce_scatter, all_gather=all_gather)


def _train(version: Version, rank: launch.Rank, options: Options, one: OneProcess | None) -> Run:
    """Train one version and record its losses, counts and time."""
    accumulate = mine.get("accumulate_ddp", options.parts)
    optimizer = options.training().optimizer(version.model.parameters())
    losses: list[float] = []
    difference = None
    start = time.perf_counter()
    for window in _updates(rank, options):
        window = [both(lambda part: part.to(rank.device), batch) for batch in window]
        losses.append(float(accumulate(version.ddp, window, options.no_sync)))
        if one and difference is None:
            difference = tensor_gap(gradients_of(version.model), one.gradients)
        optimizer.step()
        optimizer.zero_grad()
        launch.report_step(len(losses), options.steps)
    return Run(
        losses=losses,
        gradient_difference=difference,
        all_reduces=version.log.all_reduces,
        predicted_all_reduces=version.predicted,
        all_reduced_bytes=version.log.total_bytes,
        bucket_bytes=version.log.bucket_bytes[-len(options.buckets()) :],
        seconds=time.perf_counter() - start,
    )


def _whole_batches(rank: launch.Rank, options: Options) -> Iterator[Batch]:
    """Yield the samples of all ranks in each update, as one process would see them."""
    for window in _updates(rank, options):
        batches = [batch for one in from_all_ranks(window) for batch in one]
        inputs, labels = zip(*batches, strict=True)
        yield torch.cat(inputs), torch.cat(labels)


def _updates(rank: launch.Rank, options: Options) -> Iterator[list[Batch]]:
    """Yield each update's `accumulation` micro-batches, over as many epochs as needed.

    Samples that do not fill an update are dropped.
    """
    windows = Windows(options.sequence)
    sizes = (len(windows), options.micro_batch, options.accumulation)
    epoch = Batching(*sizes, gpus_per_node=rank.world, drop_last=True).epoch()
    sampler: DistributedSampler[Batch] = DistributedSampler(
        windows, seed=options.seed, drop_last=True
    )
    loader = DataLoader(windows, options.micro_batch, sampler=sampler, drop_last=True)
    for number in range(options.steps):
        if number % epoch.updates == 0:
            sampler.set_epoch(number // epoch.updates)
            batches = iter(loader)
        yield [next(batches) for _ in range(options.accumulation)]
