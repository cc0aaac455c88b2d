"""Gradient accumulation, gradient noise, and a learning-rate sweep."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_lib.measure.gradients import flat_gradient

# Gradient accumulation: one large batch, processed in small pieces.


IGNORE = -100  # label of a padding token: cross_entropy leaves it out
MicroBatch = tuple[Tensor, Tensor]  # inputs, labels: (batch, sequence)


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed (not averaged) over all non-padding tokens."""
    return cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORE,
        reduction="sum",
    )


def count_tokens(window: Sequence[MicroBatch]) -> Tensor:
    """The number of non-padding tokens in a window of micro-batches."""
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
        # Include the forward: that is where DDP decides whether to sync.
        with model.no_sync() if quiet else nullcontext():
            loss = loss_sum(model(inputs), labels) * ranks / tokens
            loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total / ranks


# Gradient noise, measured on the micro-batches of an accumulation window.


@dataclass(frozen=True)
class Reading:
    """The mean loss and the squared gradient norms of one window."""

    loss: float
    square_piece: float  # |g|² of a micro-batch, the mean over the window
    square_window: float  # |g|² of the whole window


def accumulate_and_read(
    model: nn.Module, window: Sequence[MicroBatch]
) -> Reading:
    """`accumulate`, which also measures how much its micro-batches disagree.

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
        piece_gradient = (now - before) * len(window)
        square_piece += float(piece_gradient.square().sum()) / len(window)
        loss += float(share.detach())
        before = now
    return Reading(loss, square_piece, float(before.square().sum()))


# A sweep of learning rates on a model small enough to train many of.


def final_losses(
    optimizer: Callable[..., Optimizer],
    rates: Sequence[float],
    batch: int,
    text: Tensor,
    vocab: int,
    seen: int = 2**14,
) -> dict[float, float]:
    """{learning rate: mean loss on all of `text`} after `seen` characters.

    The model is a table: row c holds the logits of what comes after character
    c. Each rate trains a table of its own, all on the same random batches.
    """
    before, after = text[:-1], text[1:]
    tables = {
        rate: torch.zeros(vocab, vocab, requires_grad=True) for rate in rates
    }
    update = optimizer(
        [{"params": [table], "lr": rate} for rate, table in tables.items()]
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(seen // batch):
        at = torch.randint(len(after), (batch,), generator=generator)
        update.zero_grad()
        for table in tables.values():
            cross_entropy(table[before[at]], after[at]).backward()
        update.step()
    return {
        rate: float(cross_entropy(table.detach()[before], after))
        for rate, table in tables.items()
    }
