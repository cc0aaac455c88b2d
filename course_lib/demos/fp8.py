"""A small GPT whose matrix products take fp8 numbers, with a scale for each tensor and without.

Emulated: operands are rounded and then multiplied in fp32, so the losses say what rounding does,
and the time says nothing. Embedding, head, norms and attention stay in fp32. Every rank does the
same, one is enough.
Run it with `course demo fp8 --ranks 1`, or under torchrun.
"""

from dataclasses import dataclass

import torch

from course_lib import launch
from course_lib.demos.shared.batch import mean_loss
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.scratch.rounded_products import Formats, round_products

VERSIONS = {
    "fp32": None,
    "bf16": Formats(torch.bfloat16, torch.bfloat16, scaled=False),
    "fp8": Formats(),
    "fp8, no scale": Formats(scaled=False),
}


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    steps: int = option(150, "optimizer updates")
    sequence: int = option(64, "characters in a sample")
    learning_rate: float = option(1e-3, "the optimizer's learning rate")


@dataclass(frozen=True)
class Result:
    """The loss at each update, of each version."""

    losses: dict[str, list[float]]

    @property
    def last(self) -> dict[str, float]:
        """The mean loss of the last ten updates, since batches differ."""
        tails = {name: losses[-10:] for name, losses in self.losses.items()}
        return {name: sum(tail) / len(tail) for name, tail in tails.items()}

    def report(self) -> str:
        """One line each."""
        fp32 = self.last["fp32"]
        head = f"{len(self.losses['fp32'])} updates; mean loss of the last ten"
        lines = (
            f"  {name:<15}{loss:.3f}, {loss / fp32 - 1:+.1%}" for name, loss in self.last.items()
        )
        return "\n".join([head, *lines])


def losses(options: Options, formats: Formats | None) -> list[float]:
    """Train one version; all have the same start and the same batches."""
    device, run = launch.init().device, options.training()
    model, found = run.build(device), []
    if formats:
        round_products(model.blocks, formats)
    optimizer = run.optimizer(model.parameters())
    for batch in run.batches(device):
        optimizer.zero_grad()
        loss = mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def main(options: Options) -> Result:
    """Train all versions."""
    return Result({name: losses(options, formats) for name, formats in VERSIONS.items()})
