"""Accumulations that the check must refuse: (what was thought, answer, words of the refusal)."""

from contextlib import nullcontext

import torch
import torch.distributed as dist

from course_lib.scratch import accumulation
from course_lib.scratch.accumulation import IGNORE, count_tokens, loss_sum
from tests.checking.builds.patches import versions


def divides_at_the_end(model, window):
    """Sums first, and one division of all gradients."""
    tokens, total = count_tokens(window), 0.0
    for inputs, labels in window:
        loss = loss_sum(model(inputs), labels)
        loss.backward()
        total += loss.item() / int(tokens)
    for parameter in model.parameters():
        parameter.grad /= tokens
    return total


def ddp_divides_at_the_end(model, window, no_sync=True):
    *before, (inputs, labels) = window
    total = torch.zeros(2)  # losses and tokens
    for x, y in before:
        with model.no_sync() if no_sync else nullcontext():
            loss = loss_sum(model(x), y)
            loss.backward()
        total += torch.stack([loss.detach(), (y != IGNORE).sum()])
    loss = loss_sum(model(inputs), labels)
    loss.backward()
    total += torch.stack([loss.detach(), (labels != IGNORE).sum()])
    dist.all_reduce(total)
    for parameter in model.parameters():
        parameter.grad *= dist.get_world_size() / total[1]
    return total[0] / total[1]


def _with(one=accumulation.accumulate, ranks=accumulation.accumulate_ddp):
    one.__name__, ranks.__name__ = "accumulate", "accumulate_ddp"
    return [one, ranks]


_ONES = """
    adds up sums
    - loss_sum(model(inputs), labels) / tokens
    + loss_sum(model(inputs), labels)
    ? 1 30 times.*a sum of losses
    adds up means
    - loss_sum(model(inputs), labels) / tokens
    + loss_sum(model(inputs), labels) / labels.numel()
    ? 1 3 times.*as many times as there are micro-batches
    one backward pass for all
    - for inputs, labels in window:
    -     loss = loss_sum(model(inputs), labels) / tokens
    -     loss.backward()  # adds to .grad
    -     total += loss.detach()
    - return total
    + losses = [loss_sum(model(inputs), labels) for inputs, labels in window]
    + loss = torch.stack(losses).sum() / tokens
    + loss.backward()
    + return loss.detach()
    ? 1 activations of several
    clears .grad in between
    - for inputs, labels in window:
    + for inputs, labels in window:
    +     model.zero_grad()
    ? 1 of the last micro-batch alone
    one batch
    - for inputs, labels in window:
    + for inputs, labels in [list(map(torch.cat, zip(*window, strict=True)))]:
    ? 1 the model runs once for 3
    with its graph
    - total += loss.detach()
    + total = total + loss
    ? 1 still has its graph
    changes labels
    - total += loss.detach()
    + total += loss.detach()
    + labels[labels == IGNORE] = 0
    ? 2 labels of the window have changed
    the last micro-batch's loss
    - return total
    + return loss.detach() * tokens / count_tokens(window[-1:])
    ? 1 returned loss is that of the
    the mean of the means
    - tokens = count_tokens(window)
    + tokens = count_tokens(window)
    + window = [(x, y) for x, y in window if (y != IGNORE).any()]
    - labels) / tokens
    + labels) / (labels != IGNORE).sum() / len(window)
    ? 2 mean of the micro-batches'
    counts padding
    - tokens = count_tokens(window)
    - total = torch.zeros((), device=tokens.device)
    + tokens, total = sum(labels.numel() for _, labels in window), torch.zeros(())
    ? 2 0.6 times.*the padding is counted
"""
_DDPS = """
    one is none
    - quiet = no_sync and number < len(window)
    + quiet = no_sync and (number < len(window) or len(window) == 1)
    ? 3 DDP exchanges no gradients
    one rank too few
    - * ranks / tokens
    + / tokens
    - return total / ranks
    + return total
    ? 3 1/2 of.*DDP takes the mean
    its own tokens only
    - dist.all_reduce(tokens)
    + pass
    - * ranks / tokens
    + / tokens
    - return total / ranks
    + return total
    ? 3 each divided by its own tokens
    its own loss only
    - dist.all_reduce(total)
    ? 3 the returned loss is this rank's share
    257 tokens are 256
    - count_tokens(window)
    + count_tokens(window).bfloat16()
    ? 3 a count of tokens in bf16
    quiet ever after
    - return total / ranks
    + model.require_backward_grad_sync = False
    + return total / ranks
    ? 3 after the window DDP still does not
    eval mode
    - dist.all_reduce(tokens)
    + dist.all_reduce(tokens)
    + model.eval()
    ? 3 after the window the model is in eval
    exchanges first
    - number < len(window)
    + number > 1
    ? 3 is not that of rank 0
    skips padding
    - quiet = no_sync and number < len(window)
    + quiet = no_sync and number < len(window)
    + if not bool((labels != IGNORE).any()):
    +     continue
    ? 3 another number of bytes
    around backward only
    - with model.no_sync() if quiet else nullcontext():
    -     loss = loss_sum(model(inputs), labels) * ranks / tokens
    -     loss.backward()
    + loss = loss_sum(model(inputs), labels) * ranks / tokens
    + with model.no_sync() if quiet else nullcontext():
    +     loss.backward()
    ? 4 no_sync=True.*3 times
    quiet without being asked
    - no_sync and number < len(window)
    + number < len(window)
    ? 4 no_sync=False.*once
"""
WRONG = [
    *versions(accumulation.accumulate, _with, _ONES),
    *versions(accumulation.accumulate_ddp, lambda wrong: _with(ranks=wrong), _DDPS),
]
RIGHT = [("divides at the end", _with(divides_at_the_end, ddp_divides_at_the_end))]
