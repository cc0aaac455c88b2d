"""Data-parallel training of a small GPT on real text, with gradient accumulation.

Each rank takes its own samples; DistributedDataParallel averages the gradients. Beside it, every
rank trains the same model as one process would, on all samples, to prove the two equal.
Run it with `course demo ddp --ranks 2`, or under torchrun.
"""

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from course_lib import launch
from course_lib.demos.command import option, run_as_program
from course_lib.demos.command import parse as parse_options
from course_lib.demos.text import VOCAB, Windows
from course_lib.measure.collectives import log_buckets
from course_lib.measure.gradients import flat_gradient, relative_difference
from course_lib.scratch.accumulation import MicroBatch, accumulate, accumulate_ddp
from course_lib.scratch.gpt import GPT
from course_lib.theory.batching import Batching
from course_lib.theory.communication import ddp_all_reduces, ddp_buckets, gradient_syncs
from course_lib.theory.units import MIB
from course_lib.theory.validation import divisible, flag, number, whole

# float32 sums in another order: |difference| / |gradient| was 2e-7 on 2 and 4 ranks.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Options:
    """What the demo can be asked for."""

    steps: int = option(30, "optimizer updates")
    micro_batch: int = option(4, "samples in one forward pass of one rank")
    accumulation: int = option(2, "micro-batches in one update")
    no_sync: bool = option(True, "exchange gradients only in the last micro-batch of an update")
    compare: bool = option(True, "train the same model as one process beside it")
    sequence: int = option(64, "characters in a sample")
    layers: int = option(2, "transformer layers")
    hidden: int = option(64, "width of the model")
    heads: int = option(4, "attention heads")
    bucket_cap_mb: float = option(25.0, "size limit of a gradient bucket in MiB")
    learning_rate: float = option(3e-3, "AdamW's learning rate")
    seed: int = option(0, "seed of the weights and the shuffle")
    json: bool = option(False, "print the result as JSON")

    def __post_init__(self) -> None:
        for name in ("steps", "micro_batch", "accumulation", "layers", "hidden", "heads"):
            whole(name, getattr(self, name), most=100_000)
        whole("sequence", self.sequence, least=2, most=4096)
        whole("seed", self.seed, least=0, most=2**31)
        divisible("hidden", self.hidden, "heads", self.heads)
        number("bucket_cap_mb", self.bucket_cap_mb, above=0)
        number("learning_rate", self.learning_rate, above=0)
        for name in ("no_sync", "compare", "json"):
            flag(name, getattr(self, name))


@dataclass(frozen=True)
class Result:
    """What one run measured, beside what was predicted for it."""

    ranks: int
    backend: str
    device: str
    losses: list[float]  # mean over all tokens of all ranks, one per update
    losses_one_process: list[float]  # empty without `compare`
    gradient_difference: float | None  # |g_ddp - g_one| / |g_one| at the first update
    all_reduces: int
    predicted_all_reduces: int
    gradient_bytes: int  # sent by one exchange: 4 bytes per parameter
    all_reduced_bytes: int
    seconds: float

    def report(self) -> str:
        """The findings, one a line."""
        lines = [
            f"{self.ranks} ranks, {self.backend} on {self.device}: {len(self.losses)} updates in "
            f"{self.seconds:.2f} s, loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}",
            f"all-reduces: predicted {self.predicted_all_reduces}, counted {self.all_reduces}, "
            f"{self.all_reduced_bytes:,} bytes",
        ]
        if self.gradient_difference is not None:
            lines.append(
                f"gradient against one process: relative difference "
                f"{self.gradient_difference:.1e} (tolerance {TOLERANCE:.0e})"
            )
        return "\n".join(lines)


def main(options: Options) -> Result:
    """Train for `options.steps` updates; every rank returns the same losses and counts."""
    rank = launch.init()
    model = _model(options).to(rank.device)
    twin = _Twin(model, options) if options.compare else None
    ddp = DistributedDataParallel(model, bucket_cap_mb=options.bucket_cap_mb)
    log = log_buckets(ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    losses = []
    start = time.perf_counter()
    for window in itertools.islice(_updates(rank, options), options.steps):
        losses.append(float(accumulate_ddp(ddp, window, options.no_sync)))
        if twin:
            twin.follow(model, window)
        optimizer.step()
        optimizer.zero_grad()
    gradient_bytes = [p.nbytes for p in reversed(list(model.parameters()))]
    return Result(
        ranks=rank.world,
        backend=rank.backend,
        device=_device_name(rank.device),
        losses=losses,
        losses_one_process=twin.losses if twin else [],
        gradient_difference=twin.first_difference if twin else None,
        all_reduces=log.all_reduces,
        predicted_all_reduces=predict_all_reduces(options, gradient_bytes),
        gradient_bytes=sum(gradient_bytes),
        all_reduced_bytes=log.total_bytes,
        seconds=time.perf_counter() - start,
    )


def predict_all_reduces(options: Options, gradient_bytes: Sequence[int]) -> int:
    """All-reduces of gradients in the whole run, from theory alone."""
    micro_steps = options.steps * options.accumulation
    syncs = gradient_syncs(micro_steps, options.accumulation, options.no_sync)
    buckets = ddp_buckets(gradient_bytes, cap_bytes=round(options.bucket_cap_mb * MIB))
    return ddp_all_reduces(syncs, len(buckets))


def _model(options: Options) -> GPT:
    torch.manual_seed(options.seed)  # the same weights on every rank
    return GPT(options.layers, options.hidden, options.heads, VOCAB, options.sequence)


class _Twin:
    """The same model trained as one process would: on the samples of all ranks in one batch."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.learning_rate)
        self.losses: list[float] = []
        self.first_difference: float | None = None

    def follow(self, model: nn.Module, window: Sequence[MicroBatch]) -> None:
        """One update on everybody's samples; the first gradient is compared with `model`'s."""
        batch = [torch.cat(_from_all_ranks(torch.cat(part))) for part in zip(*window, strict=True)]
        self.losses.append(float(accumulate(self.model, [tuple(batch)])))
        if self.first_difference is None:
            ours, one = flat_gradient(model), flat_gradient(self.model)
            self.first_difference = relative_difference(ours, one)
            if self.first_difference > TOLERANCE:
                raise AssertionError(
                    f"DDP's gradient differs from one process by {self.first_difference:.1e}, "
                    f"more than {TOLERANCE:.0e}"
                )
        self.optimizer.step()
        self.optimizer.zero_grad()


def _updates(rank: launch.Rank, options: Options) -> Iterator[list[MicroBatch]]:
    """Endless epochs, cut into windows of `accumulation` micro-batches; no ragged tails."""
    windows = Windows(options.sequence)
    sizes = (len(windows), options.micro_batch, options.accumulation)
    epoch = Batching(*sizes, gpus_per_node=rank.world, drop_last=True).epoch()
    sampler = DistributedSampler(windows, seed=options.seed, drop_last=True)
    loader = DataLoader(windows, options.micro_batch, sampler=sampler, drop_last=True)
    for pass_number in itertools.count():
        sampler.set_epoch(pass_number)
        batches = iter(loader)
        for _ in range(epoch.updates):
            window = [next(batches) for _ in range(options.accumulation)]
            yield [tuple(part.to(rank.device) for part in pair) for pair in window]


def _from_all_ranks(tensor: Tensor) -> list[Tensor]:
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
