"""Gradient accumulation: one large batch, processed in small pieces."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

IGNORE = -100  # label of a padding token: cross_entropy leaves it out
MicroBatch = tuple[Tensor, Tensor]  # inputs, labels: (batch, sequence)


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum, not mean, of the cross-entropy over all tokens that count."""
    return cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
    )


def count_tokens(window: Sequence[MicroBatch]) -> Tensor:
    """Tokens that count in a window of micro-batches."""
    return torch.stack(
        [(labels != IGNORE).sum() for _, labels in window]
    ).sum()


def accumulate(model: nn.Module, window: Sequence[MicroBatch]) -> Tensor:
    """Leave in `.grad` the gradient of the mean loss over the window's tokens.

    Σ over micro-batches of loss_sum / tokens, one backward at a time, so only
    one micro-batch's activations live at once. Returns the mean loss.
    """
    tokens = count_tokens(window)
    total = torch.zeros((), device=tokens.device)
    for inputs, labels in window:
        loss = loss_sum(model(inputs), labels) / tokens
        loss.backward()  # adds to .grad
        total += loss.detach()
    return total


def accumulate_by_means(
    model: nn.Module, window: Sequence[MicroBatch]
) -> Tensor:
    """The mean of the micro-batches' means: wrong when token counts differ."""
    total = torch.zeros(())
    for inputs, labels in window:
        mean = loss_sum(model(inputs), labels) / (labels != IGNORE).sum()
        loss = mean / len(window)
        loss.backward()
        total += loss.detach()
    return total


def accumulate_ddp(
    model: DistributedDataParallel,
    window: Sequence[MicroBatch],
    no_sync: bool = True,
) -> Tensor:
    """`accumulate` on every rank of a DDP model, with one gradient exchange.

    DDP averages gradients over ranks. The loss is divided by the tokens of all
    ranks and multiplied by the number of ranks, so that the average is the
    sum over all tokens. Returns the mean loss over all tokens of all ranks.
    """
    ranks, tokens = dist.get_world_size(), count_tokens(window)
    dist.all_reduce(tokens)
    total = torch.zeros((), device=tokens.device)
    for number, (inputs, labels) in enumerate(window, start=1):
        quiet = no_sync and number < len(window)
        # The forward must be inside as well: there DDP decides to exchange.
        with model.no_sync() if quiet else nullcontext():
            loss = loss_sum(model(inputs), labels) * ranks / tokens
            loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total / ranks
