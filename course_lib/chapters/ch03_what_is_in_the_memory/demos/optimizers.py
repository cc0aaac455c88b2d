"""AdamW in fewer bytes: bf16 weights with and without a master copy, moments of one byte.

Trains one small GPT with each, counts weights, gradients and states, and compares the weights with
those that AdamW in fp32 ends with. All ranks do the same work, so one is enough.
Run it with `course demo optimizers --ranks 1`, or under torchrun.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import launch, mine
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import FP32
from course_lib.demos.shared.result import Fact, Result
from course_lib.demos.shared.training import mean_loss
from course_lib.measure.gradients import relative_difference
from course_lib.scratch import precision
from course_lib.scratch.gpt import ledger
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import model_states

BLOCK = 256


@dataclass(frozen=True)
class Options(BatchOptions):
    """The demo's options."""

    steps: int = option(30, "optimizer updates")
    parts: str = whose_parts()


@dataclass(frozen=True)
class Kind:
    """One optimizer: its constructor, its recipe of bytes, and its allowed distance from fp32."""

    make: Callable[[Iterable[nn.Parameter], float], Any]
    recipe: Recipe
    part: str = ""  # name of the learner's part that may replace it
    most: float | None = None  # the largest gap; None where it is expected to fail


@dataclass(frozen=True)
class Version:
    """Bytes that one optimizer kept, and its weights' distance from fp32."""

    name: str
    state_bytes: int  # weights, gradients and optimizer states
    predicted_bytes: int
    parameters: int
    loss: float
    gap: float  # |Δw - Δw in fp32| / |Δw in fp32| over all weights; inf if some are not finite

    def line(self) -> str:
        """One line of the report."""
        off = f"{self.gap:.1%} off" if self.gap < 10 else f"{self.gap:,.0f} times the way off"
        if math.isinf(self.gap):
            off = "the weights are not finite any more"
        return (
            f"  {self.name:<36}{self.state_bytes / self.parameters:>6.2f} B a weight "
            f"({self.predicted_bytes / self.parameters:.2f}), loss {self.loss:.3f}, {off}"
        )


def kinds(parts: str) -> dict[str, Kind]:
    """Every optimizer by name; the learner's own parts where `parts` is "mine"."""
    bf16 = Recipe(optimizer="adamw-bf16", master_copy=False)
    byte = Recipe("fp32", "fp32", optimizer="adamw-8bit", master_copy=False)
    master, eight = mine.get("MasterAdamW", parts), mine.get("AdamW8bit", parts)
    return {
        "fp32": Kind(_torch, FP32, most=0.0),
        "bf16, no master copy": Kind(_torch, bf16),
        "bf16, master copy": Kind(master, Recipe(), "MasterAdamW", 0.2),
        "8-bit": Kind(eight, byte, "AdamW8bit", 0.1),
        "8-bit, linear maps": Kind(_linear, byte),
    }


def _torch(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr)


def _linear(parameters: Iterable[nn.Parameter], lr: float) -> precision.AdamW8bit:
    """The course's AdamW8bit with linear maps, which do not work."""
    optimizer = precision.AdamW8bit(parameters, lr)
    linear = precision.linear_levels
    optimizer.levels = {"momentum": linear(signed=True), "variance": linear(signed=False)}
    return optimizer


def main(options: Options) -> Result:
    """Train with each; AssertionError where bytes or weights are not as predicted."""
    device, versions, facts = launch.init().device, [], []
    start = _flat(options.training().build(device))
    in_fp32 = None
    for name, kind in kinds(options.parts).items():
        model = options.training().build(device)
        if kind.recipe.parameters == "bf16":
            model.bfloat16()
        optimizer = kind.make(model.parameters(), options.learning_rate)
        loss = torch.tensor(0.0)
        for inputs, labels in options.training().batches(device):
            model.zero_grad()
            loss = mean_loss(model, (inputs, labels))
            loss.backward()
            optimizer.step()
        change = _flat(model) - start
        in_fp32 = change if in_fp32 is None else in_fp32
        yours = kind.part and with_yours(options.parts, kind.part)
        version = Version(
            name=f"{name}, by your {kind.part}" if yours else name,
            state_bytes=sum(ledger(model, optimizer).values()),
            predicted_bytes=predicted_bytes(model, kind.recipe),
            parameters=len(start),
            loss=float(loss.detach()),
            gap=relative_difference(change, in_fp32) if bool(change.isfinite().all()) else math.inf,
        )
        versions.append(version)
        kept = version.state_bytes, version.predicted_bytes
        facts.append(Fact(f"{version.name}: bytes kept", *kept))
        if kind.most is not None:
            weights, most = f"{version.name}: the way of the weights", kind.most
            facts.append(Fact(weights, version.gap, tolerance=most, beside="that in fp32"))
    head = f"{options.steps} updates (predicted bytes in brackets; off: from fp32's weights)"
    lines = (version.line() for version in versions)
    return Result(head, *lines, facts=facts, versions=versions)


def predicted_bytes(model: nn.Module, recipe: Recipe) -> int:
    """Predicted bytes of weights, gradients and states, plus the scales of 8-bit moments."""
    sizes = [p.numel() for p in model.parameters()]
    scales = sum(-(-size // BLOCK) for size in sizes) if recipe.optimizer == "adamw-8bit" else 0
    return model_states(sum(sizes), recipe).model_states_bytes + 2 * 4 * scales


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])
