"""Batches, steps and epochs; learning-rate rules; the critical batch size."""

import math
from dataclasses import dataclass
from typing import Annotated

from course_lib.checked import Count, Positive, check_public
from course_lib.theory.inputs.units import format_number
from course_lib.validation import divisible, listed, whole


@dataclass(frozen=True)
class Epoch:
    """Steps and samples of one pass over the data, on each data-parallel rank."""

    micro_steps: int  # forward + backward passes
    updates: int  # optimizer steps
    samples_per_rank: int
    repeated: int  # samples that some rank sees twice, so that all ranks get equally many
    dropped: int  # samples that no rank sees
    last_micro_batch: int  # samples in the last micro-batch
    last_window: int  # micro-steps in the last update


@dataclass(frozen=True)
class Batching:
    """How a data set is split into batches for `nodes * gpus_per_node` processes.

    `micro_batch` is the number of samples in one forward pass of one data-parallel rank
    (also called per-device batch). `drop_last` drops every incomplete tail: samples left over when
    divided over ranks, the short last micro-batch, the short last accumulation window.
    Without it the sampler repeats samples and the tails are kept, as torch's DistributedSampler
    and DataLoader do by default.

    Raises ValueError for counts below 1 and for a world that tp * pp * cp does not divide.
    """

    samples: Count
    micro_batch: Count = 1
    accumulation: Count = 1
    nodes: Count = 1
    gpus_per_node: Count = 1
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    sequence: Count = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        divisible("world", self.world, "tp*pp*cp", self.tp * self.pp * self.cp)
        if self.drop_last and self.samples < self.global_batch:
            raise ValueError(
                f"samples {self.samples} is less than one global batch of {self.global_batch} and "
                "drop_last would drop them all: set drop_last=False or take a smaller batch"
            )

    @property
    def world(self) -> int:
        """Number of processes: nodes * gpus_per_node."""
        return self.nodes * self.gpus_per_node

    @property
    def dp(self) -> int:
        """Data-parallel degree: world / (tp * pp * cp). Source: Megatron-LM's arguments."""
        return self.world // (self.tp * self.pp * self.cp)

    @property
    def global_batch(self) -> int:
        """Samples per optimizer update: micro_batch * accumulation * dp."""
        return self.micro_batch * self.accumulation * self.dp

    @property
    def tokens_per_batch(self) -> int:
        """Tokens per optimizer update: global_batch * sequence."""
        return self.global_batch * self.sequence

    def epoch(self) -> Epoch:
        """Step counts and incomplete tails of one epoch.

        samples per rank = ceil(samples / dp); micro-steps = ceil(that / micro_batch);
        updates = ceil(micro-steps / accumulation). With drop_last every ceil is a floor.
        """
        per_rank = _parts(self.samples, self.dp, self.drop_last)
        micro_steps = _parts(per_rank, self.micro_batch, self.drop_last)
        updates = _parts(micro_steps, self.accumulation, self.drop_last)
        if self.drop_last:
            micro_steps = updates * self.accumulation
            per_rank = micro_steps * self.micro_batch
        spread = per_rank * self.dp - self.samples  # above 0: repeated; below 0: dropped
        return Epoch(
            micro_steps=micro_steps,
            updates=updates,
            samples_per_rank=per_rank,
            repeated=max(0, spread),
            dropped=max(0, -spread),
            last_micro_batch=per_rank - (micro_steps - 1) * self.micro_batch,
            last_window=micro_steps - (updates - 1) * self.accumulation,
        )

    def explain(self) -> str:
        """The derivation with its numbers, one line per quantity; tokens if `sequence` is set."""
        epoch = self.epoch()
        rounding = "down (drop_last)" if self.drop_last else "up"
        tokens = (
            f"tokens per batch = {self.global_batch} × sequence {self.sequence}"
            f" = {self.tokens_per_batch:,}"
        )
        return "\n".join(
            [
                f"world = nodes {self.nodes} × GPUs per node {self.gpus_per_node} = {self.world}",
                f"dp = world {self.world} / (tp {self.tp} × pp {self.pp} × cp {self.cp})"
                f" = {self.dp}",
                f"global batch = micro-batch {self.micro_batch} × accumulation"
                f" {self.accumulation} × dp {self.dp} = {self.global_batch} samples",
                *([tokens] if self.sequence > 1 else []),
                f"samples per rank = {self.samples} / dp {self.dp}, rounded {rounding}"
                f" = {epoch.samples_per_rank}",
                f"micro-steps per epoch = {epoch.samples_per_rank} / micro-batch"
                f" {self.micro_batch}, rounded {rounding} = {epoch.micro_steps}",
                f"updates per epoch = {epoch.micro_steps} / accumulation {self.accumulation},"
                f" rounded {rounding} = {epoch.updates}",
            ]
        )


def rank_samples(samples: Count, dp: Count, rank: int, drop_last: bool = False) -> list[int]:
    """Indices of the samples that data-parallel `rank` sees, in order, without shuffling.

    Rank r takes every dp-th index starting at r. Without drop_last the first indices are
    repeated until all ranks have equally many, as torch's DistributedSampler does.
    """
    whole("rank", rank, least=0, most=dp - 1)
    per_rank = _parts(samples, dp, drop_last)
    listed("samples of a rank", per_rank, "take fewer samples, or more ranks")
    return [(rank + dp * i) % samples for i in range(per_rank)]


def scaled_learning_rate(
    base: Positive,
    base_batch: Count,
    batch: Count,
    rule: Annotated[str, ("linear", "sqrt")],
    *,
    critical_batch: Positive | None = None,
) -> float:
    """The learning rate scaled from `base_batch` to `batch`.

    rule "linear": base * batch / base_batch, for SGD (Goyal et al. 2017, arXiv:1706.02677).
    rule "sqrt": base * sqrt(batch / base_batch), for Adam and LAMB (You et al. 2019,
    arXiv:1904.00962). Both are rules of thumb, not laws.

    With a `critical_batch` c both rules level off beyond it: the ratio of the batches becomes
    (1 + c / base_batch) / (1 + c / batch). Source: McCandlish et al. 2018, arXiv:1812.06162,
    section 2.2, which has it for SGD.
    """
    ratio = batch / base_batch
    if critical_batch is not None:
        ratio *= (base_batch + critical_batch) / (batch + critical_batch)
    return base * (ratio if rule == "linear" else math.sqrt(ratio))


@dataclass(frozen=True)
class BatchCost:
    """Cost of reaching a fixed loss with one batch size, relative to the two ideal extremes."""

    steps: float  # S / S_min: 1 with an infinite batch
    samples: float  # E / E_min: 1 with a tiny batch


def batch_cost(batch: Positive, critical_batch: Positive) -> BatchCost:
    """Steps and samples to a fixed loss: S/S_min = 1 + Bc/B and E/E_min = 1 + B/Bc.

    Source: McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11 and appendix D.
    """
    return BatchCost(steps=1 + critical_batch / batch, samples=1 + batch / critical_batch)


def noise_scale(small: Count, square_small: Positive, big: int, square_big: Positive) -> float:
    """The simple noise scale tr(Σ)/|G|², an estimate of the critical batch, in samples.

    From the mean squared gradient norms at two batch sizes: |G_B|² averages |G|² + tr(Σ)/B,
    so two batch sizes give both unknowns.
    Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.
    """
    whole("big", big, least=small + 1)
    signal = (big * square_big - small * square_small) / (big - small)
    noise = (square_small - square_big) / (1 / small - 1 / big)
    if signal <= 0 or noise < 0:
        missing = "signal" if signal <= 0 else "noise"
        raise ValueError(
            f"square_big {format_number(square_big)} leaves no {missing} beside square_small "
            f"{format_number(square_small)}: average the squared norms over more batches"
        )
    return noise / signal


def _parts(value: int, by: int, drop_last: bool) -> int:
    """value / by, rounded down if `drop_last`, else up."""
    return value // by if drop_last else -(-value // by)


check_public(globals())
