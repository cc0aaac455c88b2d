"""Gradient noise, read from the pieces that accumulation makes anyway."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from course_lib.measure.gradients import flat_gradient
from course_lib.scratch.accumulation import MicroBatch, count_tokens, loss_sum


@dataclass(frozen=True)
class Reading:
    """One window: its mean loss, and the squared lengths of two gradients."""

    loss: float
    square_piece: float  # |g|² of a micro-batch, the mean over the window
    square_window: float  # |g|² of the whole window


def accumulate_and_read(
    model: nn.Module, window: Sequence[MicroBatch]
) -> Reading:
    """`accumulate`, which also notes how much its micro-batches disagree.

    A micro-batch's own gradient is what it adds to `.grad`, times the number
    of micro-batches. So all of them must have equally many tokens; ValueError
    if not. Expects `.grad` to be empty, as after `zero_grad()`.
    """
    counts = {int(count_tokens([piece])) for piece in window}
    if len(counts) != 1:
        raise ValueError(
            f"micro-batches have {sorted(counts)} tokens: "
            "give them equally many"
        )
    tokens = counts.pop() * len(window)
    loss = square_piece = 0.0
    before = torch.zeros(())
    for inputs, labels in window:
        share = loss_sum(model(inputs), labels) / tokens
        share.backward()
        now = flat_gradient(model)
        own = (now - before) * len(window)
        square_piece += float(own.square().sum()) / len(window)
        loss += float(share.detach())
        before = now
    return Reading(loss, square_piece, float(before.square().sum()))
