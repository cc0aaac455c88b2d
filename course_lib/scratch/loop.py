"""The training loop, reduced to what it counts."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass
class Counts:
    """What one epoch did."""

    samples: int = 0
    micro_steps: int = 0
    updates: int = 0


def train_epoch(
    model: nn.Module,
    optimizer: Optimizer,
    inputs: Tensor,
    targets: Tensor,
    micro_batch: int,
    accumulation: int = 1,
) -> Counts:
    """One epoch of least squares.

    Inputs are (samples, features), targets (samples, 1). Each window of
    `accumulation` micro-batches is one update, with the mean loss over it.
    """
    counts = Counts()
    window_size = micro_batch * accumulation
    for window in torch.arange(len(inputs)).split(window_size):
        for rows in window.split(micro_batch):
            error = model(inputs[rows]) - targets[rows]
            loss = error.square().sum() / len(window)  # share of the mean
            loss.backward()
            counts.micro_steps += 1
            counts.samples += len(rows)
        optimizer.step()
        optimizer.zero_grad()
        counts.updates += 1
    return counts
