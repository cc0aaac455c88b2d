"""A small GPT whose matrix products take fp8 numbers, with a scale for each tensor and without.

Emulated: operands are rounded and then multiplied in fp32, so the losses say what rounding does,
and the time says nothing. Embedding, head, norms and attention stay in fp32. All ranks do the
same work, so one is enough.
Run it with `course demo fp8 --ranks 1`, or under torchrun.
"""

from dataclasses import dataclass
from statistics import fmean

import torch

from course_lib import launch
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Training, one_process
from course_lib.scratch.gpt import GPT
from course_lib.scratch.precision import Formats, round_products

VERSIONS = {
    "fp32": None,
    "bf16": Formats(torch.bfloat16, torch.bfloat16, scaled=False),
    "fp8": Formats(),
    "fp8, no scale": Formats(scaled=False),
}


@dataclass(frozen=True)
class Options(BatchOptions):
    """The demo's options."""

    steps: int = option(150, "optimizer updates")
    sequence: int = option(64, "characters in a sample")
    learning_rate: float = option(1e-3, "the optimizer's learning rate")


@dataclass(frozen=True)
class Rounded(Training):
    """A training run with rounded matrix products; all runs share initial weights and batches."""

    formats: Formats | None = None

    def build(self, device: torch.device | str = "cpu") -> GPT:
        """The model with its initial weights."""
        model = super().build(device)
        if self.formats:
            round_products(model.blocks, self.formats)
        return model


def main(options: Options) -> Result:
    """Train all versions; `last` is the mean loss of the last ten updates, since batches differ."""
    device = launch.init().device
    losses = {
        name: one_process(options.fill(Rounded, formats=formats), device).losses
        for name, formats in VERSIONS.items()
    }
    last = {name: fmean(each[-10:]) for name, each in losses.items()}
    return Result(
        f"{options.steps} updates; mean loss of the last ten",
        *(f"  {name:<15}{loss:.3f}, {loss / last['fp32'] - 1:+.1%}" for name, loss in last.items()),
        losses=losses,
        last=last,
    )
