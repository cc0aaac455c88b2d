"""A profiler's trace of DDP: one large bucket, and small ones that travel meanwhile.

Profiles one backward pass of DDP, the library's and the one written out, and counts how many
milliseconds of communication hide behind computation.
Run it with `course demo overlap --ranks 2`, or under torchrun; open the file that `--trace` writes
at chrome://tracing or ui.perfetto.dev.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.ranks import at_least_two, device_name
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Training, mean_loss, own_rows
from course_lib.measure.times import Timeline, record, timeline
from course_lib.scratch.ddp import DDP
from course_lib.theory.inputs.units import MIB


@dataclass(frozen=True)
class Options(BatchOptions):
    """The demo's options."""

    steps: int = option(4, "backward passes of each version; the last is profiled")
    model: str = option("4x256x8", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    sequence: int = option(64, "characters in a sample")
    bucket_cap_mb: float = option(2.0, "size limit of the small buckets in MiB", above=0)
    trace: str = option("", "write the small buckets' trace of rank 0 to this file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trace and not Path(self.trace).resolve().parent.is_dir():
            raise ValueError(f"trace {self.trace!r} is in no folder that exists: create it first")


@dataclass(frozen=True)
class Lanes(Timeline):
    """One backward pass of rank 0."""

    name: str
    buckets: int

    @property
    def title(self) -> str:
        """One line: version, number of buckets, and overlapped of all communication time."""
        buckets = f"{self.buckets} bucket{'s' if self.buckets > 1 else ''}"
        return (
            f"{self.name}, {buckets}: {self.overlapped_ms:.1f} of {self.communication_ms:.1f} ms "
            "of communication overlapped"
        )


def main(options: Options) -> Result:
    """Profile a backward pass of each version; every rank takes part and returns its own."""
    rank = launch.init()
    training = options.training()
    sizes = [p.nbytes for p in training.build().parameters()]
    at_least_two(rank)
    lanes = []
    for cap_mb in (sum(sizes) / MIB, options.bucket_cap_mb):
        cap = round(cap_mb * MIB)
        versions: dict[str, Callable[[nn.Module], nn.Module]] = {
            "DDP by hand": partial(DDP, cap_bytes=cap, first_bytes=cap),
            "DistributedDataParallel": partial(DistributedDataParallel, bucket_cap_mb=cap_mb),
        }
        for name, wrap in versions.items():
            trace = _profiled(wrap, training, rank)
            sends = [one for one in trace["traceEvents"] if one.get("name") == "c10d::allreduce_"]
            lanes.append(Lanes(**vars(timeline(trace)), name=name, buckets=len(sends)))
            if options.trace and rank.rank == 0:
                Path(options.trace).write_text(json.dumps(trace))
    device = device_name(rank.device)
    return Result(
        f"overlap: {rank.world} ranks, {rank.backend} on {device}, model {options.model}",
        *(f"  {one.title}" for one in lanes),
        ranks=rank.world,
        lanes=lanes,
    )


def _profiled(
    wrap: Callable[[nn.Module], nn.Module], training: Training, rank: launch.Rank
) -> dict[str, Any]:
    """Trace of the last backward pass; earlier ones warm up and let DDP settle its buckets."""
    ddp = wrap(training.build(rank.device))
    trace: dict[str, Any] = {}
    for step, batch in enumerate(training.batches(rank.device), start=1):
        loss = mean_loss(ddp, own_rows(batch, rank))
        if step == training.steps:
            trace = record(loss.backward)
        else:
            loss.backward()
        ddp.zero_grad()
        launch.report_step(step, training.steps)
    return trace
