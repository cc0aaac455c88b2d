"""Activation checkpointing: bytes kept and FLOPs computed again, with dropout.

Trains a GPT without it, with our own autograd Function, and with torch.utils.checkpoint. Counts the
bytes that autograd keeps and the FLOPs of one forward and backward pass, and compares gradients
with dropout, whose masks must be drawn again.
Run it with `course demo checkpointing --ranks 1`, on several ranks (by DDP), or under torchrun.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib import launch, mine
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import FP32, predicted_stored
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.trainee import Replica, predicted_exchange
from course_lib.demos.shared.training import Batch, both, mean_loss, own_rows
from course_lib.measure.gradients import flat_gradient, relative_difference, saved_bytes
from course_lib.measure.times import matmul_flops
from course_lib.scratch.checkpointing import Segment, cut
from course_lib.scratch.ddp import DDP
from course_lib.scratch.gpt import GPT
from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs import Job, Layout
from course_lib.theory.memory.activations import head_activation_bytes, layer_activation_bytes
from course_lib.validation import whole

# Both runs do the same operations in the same order: the difference was 0 on a CPU.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Options(BatchOptions):
    """The demo's options."""

    model: str = option("4x64x4", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    segment: int = option(0, "layers in a segment; 0: the square root of all", least=0)
    dropout: float = option(0.1, "part of each layer's output that dropout removes", least=0)
    parts: str = whose_parts()

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, _, _ = self.training().size
        whole("segment", self.segment, least=0, most=layers)
        if self.dropout >= 1:
            raise ValueError(f"dropout must be below 1, got {self.dropout}: 0.1 removes a tenth")

    @property
    def size(self) -> int:
        """Layers in a segment."""
        layers, _, _ = self.training().size
        return self.segment or round(math.sqrt(layers))

    @property
    def segments(self) -> int:
        """Number of segments in the model; the last may be smaller."""
        layers, _, _ = self.training().size
        return -(-layers // self.size)


@dataclass(frozen=True)
class Cost:
    """Bytes kept and FLOP computed by one version in one rank's forward and backward pass."""

    name: str
    kept_bytes: int  # for the backward pass, measured with autograd's saved-tensor hooks
    predicted_kept_bytes: int | None  # None on a GPU, whose kernels may keep other tensors
    flop: int
    predicted_flop: int
    dropout_difference: float  # |g - g_without| / |g_without| with dropout

    def facts(self) -> list[Fact]:
        """Measured values that must match the predicted ones."""
        gradient, beside = f"{self.name}: the gradient with dropout", "that without checkpointing"
        kept = Fact(f"{self.name}: bytes kept", self.kept_bytes, self.predicted_kept_bytes)
        return [
            Fact(f"{self.name}: FLOP", self.flop, self.predicted_flop),
            Fact(gradient, self.dropout_difference, tolerance=TOLERANCE, beside=beside),
            *([] if self.predicted_kept_bytes is None else [kept]),
        ]

    def line(self) -> str:
        """One line of the report: bytes kept, FLOP and the gradient's difference."""
        predicted = "" if self.predicted_kept_bytes is None else f" ({self.predicted_kept_bytes:,})"
        return (
            f"  {self.name:<24}{self.kept_bytes:>12,} B{predicted}, {self.flop:,} FLOP "
            f"({self.predicted_flop:,})\n{'':<26}gradient with dropout off by "
            f"{self.dropout_difference:.0e}"
        )


class LibrarySegment(nn.Sequential):
    """Layers run under torch.utils.checkpoint."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return result


def versions(parts: str) -> dict[str, type[nn.Module] | None]:
    """The class that runs a segment, by the version's name; None leaves the layers as they are."""
    yours = with_yours(parts, "Checkpoint")
    by_hand = type("BuiltSegment", (Segment,), {"function": mine.get("Checkpoint", parts)})
    return {
        "no checkpointing": None,
        "with your Checkpoint" if yours else "checkpointing by hand": by_hand,
        "torch.utils.checkpoint": LibrarySegment,
    }


def main(options: Options) -> Result:
    """Train every version, then count; AssertionError where a count is not as predicted."""
    rank, training = launch.init(), options.training()
    kinds, comparison = versions(options.parts), Comparison(training)
    exchange, states = predicted_exchange(training, rank), predicted_stored(training)
    for name, kind in kinds.items():
        model = _cut(training.build(rank.device), options, kind)
        comparison.follow(Replica(name, training, model, DDP(model)), exchange, states)
    rows = own_rows(training.batches(rank.device)[0], rank)
    rows = both(Tensor.clone, rows)  # a view would keep the rows of all ranks in memory
    costs = [_cost(name, kind, options, rows) for name, kind in kinds.items()]
    kept, flop = (
        getattr(costs[1], what) / getattr(costs[0], what) for what in ("kept_bytes", "flop")
    )
    return comparison.result(
        "activation checkpointing",
        notes=[
            f"one forward and backward pass of a rank, {options.segments} segments "
            "(predicted in brackets):",
            *(cost.line() for cost in costs),
            f"checkpointing keeps {kept:.0%} of the bytes for {flop - 1:.0%} more FLOPs",
        ],
        facts=[fact for cost in costs for fact in cost.facts()],
        segments=options.segments,
        costs=costs,
    )


def predicted_bytes(options: Options, samples: int, kind: type[nn.Module] | None) -> int:
    """Bytes that autograd keeps for `samples`: theory.memory.activations plus what it leaves out.

    It leaves out mean and scale of norms outside segments (without segments: of all norms, and
    attention's log-sum-exp), indices of inputs, labels and positions, and the loss's token count.
    """
    training, shape = options.training(), options.training().shape()
    sequence, tokens = training.sequence, samples * training.sequence
    layout = Layout(micro_batch=samples)
    job = Job(shape, FP32, layout, sequence=sequence)
    kept = head_activation_bytes(job)
    indices = 2 * 8 * tokens + 8 * sequence + 4
    norms, log_sums = 1, 0
    if kind is None:
        kept += sum(layer_activation_bytes(job, layer) for layer in range(shape.layers))
        norms, log_sums = 2 * shape.layers + 1, shape.layers * shape.heads
    else:
        full = replace(job, recipe=replace(FP32, recompute="full"))
        kept += options.segments * layer_activation_bytes(full)
    return kept + indices + (2 * norms + log_sums) * 4 * tokens


def predicted_flop(options: Options, samples: int, kind: type[nn.Module] | None) -> int:
    """FLOP of a forward and a backward pass: theory.compute.flops minus what torch skips.

    torch.utils.checkpoint stops recomputing at the last result that backward needs: the second
    matrix of a segment's last MLP is not multiplied again.
    """
    training, shape = options.training(), options.training().shape()
    recompute = "none" if kind is None else "full"
    flops = training_flops(
        shape, samples, training.sequence, recompute=recompute, attention="flash"
    ).hardware_flop
    if kind is LibrarySegment:
        tokens = samples * training.sequence
        flops -= options.segments * 2 * tokens * shape.ffn * shape.hidden
    return flops


def _cut(model: GPT, options: Options, kind: type[nn.Module] | None) -> GPT:
    return model if kind is None else cut(model, options.size, kind)


def _cost(name: str, kind: type[nn.Module] | None, options: Options, rows: Batch) -> Cost:
    samples, device = len(rows[0]), rows[0].device
    model = _cut(options.training().build(device), options, kind)
    flop = matmul_flops(lambda: mean_loss(model, rows).backward())
    model.zero_grad()
    on_cpu = device.type == "cpu"
    return Cost(
        name=name,
        kept_bytes=saved_bytes(lambda: mean_loss(model, rows), model),
        predicted_kept_bytes=predicted_bytes(options, samples, kind) if on_cpu else None,
        flop=flop,
        predicted_flop=predicted_flop(options, samples, kind),
        dropout_difference=_dropout_difference(kind, options, rows),
    )


def _dropout_difference(kind: type[nn.Module] | None, options: Options, rows: Batch) -> float:
    """Relative difference, with dropout, from the gradient without checkpointing; same seed."""

    def gradient(kind: type[nn.Module] | None) -> Tensor:
        model = options.training().build(rows[0].device)
        model.blocks = nn.ModuleList(
            nn.Sequential(block, nn.Dropout(options.dropout)) for block in model.blocks
        )
        model = _cut(model, options, kind)
        torch.manual_seed(options.seed)
        mean_loss(model, rows).backward()
        return flat_gradient(model)

    return relative_difference(gradient(kind), gradient(None))
