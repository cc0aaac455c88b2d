"""Accumulations that the check must refuse: (what was thought, answer, words of the refusal)."""

from contextlib import nullcontext

import torch
import torch.distributed as dist

from course_lib.scratch.accumulation import (
    IGNORE,
    accumulate,
    accumulate_by_means,
    accumulate_ddp,
    count_tokens,
    loss_sum,
)


def sums(model, window):
    for inputs, labels in window:
        loss_sum(model(inputs), labels).backward()
    return torch.tensor(0.0)


def means(model, window):
    total = torch.tensor(0.0)
    for inputs, labels in window:
        loss = loss_sum(model(inputs), labels) / labels.numel()
        loss.backward()
        total += loss.detach() / len(window)
    return total


def counts_padding(model, window):
    tokens = sum(labels.numel() for _, labels in window)
    total = torch.tensor(0.0)
    for inputs, labels in window:
        loss = loss_sum(model(inputs), labels) / tokens
        loss.backward()
        total += loss.detach()
    return total


def all_at_once(model, window):
    losses = [loss_sum(model(inputs), labels) for inputs, labels in window]
    loss = torch.stack(losses).sum() / count_tokens(window)
    loss.backward()
    return loss.detach()


def the_last_loss(model, window):
    for inputs, labels in window:
        loss = loss_sum(model(inputs), labels)
        (loss / count_tokens(window)).backward()
    return loss.detach() / count_tokens(window[-1:])


def one_batch(model, window):
    inputs, labels = map(torch.cat, zip(*window, strict=True))
    return accumulate(model, [(inputs, labels)])


def clears_in_between(model, window):
    tokens = count_tokens(window)
    for inputs, labels in window:
        model.zero_grad()
        (loss_sum(model(inputs), labels) / tokens).backward()
    return torch.tensor(0.0)


def skips_padding_by_mean(model, window):
    """Right where padding fills a micro-batch, wrong where it fills a part of one."""
    full = [(x, y) for x, y in window if bool((y != IGNORE).any())]
    return accumulate_by_means(model, full)


def returns_nothing(model, window):
    accumulate(model, window)


def _ddp(
    model,
    window,
    no_sync=True,
    *,
    all_tokens=True,
    times_ranks=True,
    around_forward=True,
    sync_at=-1,
    skips=False,
    sums_losses=True,
    counts_in=torch.int64,
):
    """accumulate_ddp in which one thing can go wrong."""
    ranks, tokens = dist.get_world_size(), count_tokens(window).to(counts_in)
    if all_tokens:
        dist.all_reduce(tokens)
    total = torch.zeros(())
    for number, (inputs, labels) in enumerate(window):
        if skips and not bool((labels != IGNORE).any()):
            continue
        quiet = no_sync and (sync_at is None or number != sync_at % len(window))
        context = model.no_sync() if quiet else nullcontext()
        with context if around_forward else nullcontext():
            loss = loss_sum(model(inputs), labels) / tokens
            loss = loss * ranks if times_ranks else loss
            if around_forward:
                loss.backward()
        if not around_forward:
            with context:
                loss.backward()
        total += loss.detach()
    if sums_losses:
        dist.all_reduce(total)
    return total / (ranks if times_ranks else 1)


def forgets_the_ranks(model, window, no_sync=True):
    return _ddp(model, window, no_sync, times_ranks=False)


def own_tokens(model, window, no_sync=True):
    return _ddp(model, window, no_sync, all_tokens=False, times_ranks=False)


def own_loss(model, window, no_sync=True):
    return _ddp(model, window, no_sync, sums_losses=False)


def around_backward_only(model, window, no_sync=True):
    return _ddp(model, window, no_sync, around_forward=False)


def always_quiet(model, window, no_sync=True):
    return _ddp(model, window, no_sync, sync_at=None)


def exchanges_first(model, window, no_sync=True):
    return _ddp(model, window, no_sync, sync_at=0)


def never_quiet(model, window, no_sync=True):
    return _ddp(model, window, no_sync=False)


def quiet_in_any_case(model, window, no_sync=True):
    return _ddp(model, window, no_sync=True)


def skips_padding(model, window, no_sync=True):
    """The rank whose last micro-batch is padding never exchanges."""
    return _ddp(model, window, no_sync, skips=True)


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


def with_its_graph(model, window):
    tokens, total = count_tokens(window), 0.0
    for inputs, labels in window:
        loss = loss_sum(model(inputs), labels) / tokens
        loss.backward()
        total = total + loss
    return total


def changes_labels(model, window):
    """Padding becomes word 0, with a weight of 0."""
    total = accumulate(model, window)
    for _, labels in window:
        labels[labels == IGNORE] = 0
    return total


def ddp_all_at_once(model, window, no_sync=True):
    ranks, tokens = dist.get_world_size(), count_tokens(window)
    dist.all_reduce(tokens)
    losses = []
    for number, (inputs, labels) in enumerate(window, start=1):
        with model.no_sync() if no_sync and number < len(window) else nullcontext():
            losses.append(loss_sum(model(inputs), labels) * ranks / tokens)
    total = torch.stack(losses).sum()
    total.backward()
    total = total.detach()
    dist.all_reduce(total)
    return total / ranks


def quiet_windows_of_one(model, window, no_sync=True):
    return _ddp(model, window, no_sync, sync_at=None if len(window) == 1 else -1)


def counts_in_bf16(model, window, no_sync=True):
    return _ddp(model, window, no_sync, counts_in=torch.bfloat16)


def stays_quiet(model, window, no_sync=True):
    loss = _ddp(model, window, no_sync)
    model.require_backward_grad_sync = False
    return loss


def left_in_eval_mode(model, window, no_sync=True):
    return _ddp(model.eval(), window, no_sync)


def _with(one=accumulate, ranks=accumulate_ddp):
    one.__name__, ranks.__name__ = "accumulate", "accumulate_ddp"
    return [one, ranks]


_FIRST, _SECOND, _THIRD, _FOURTH = (f"step {n} of 4.*" for n in (1, 2, 3, 4))
WRONG = [
    ("adds up sums", _with(sums), _FIRST + "30 times.*a sum of losses"),
    ("adds up means", _with(means), _FIRST + "3 times.*as many times as there are micro-batches"),
    ("one backward pass for all", _with(all_at_once), _FIRST + "activations of several"),
    ("clears .grad in between", _with(clears_in_between), _FIRST + "of the last micro-batch alone"),
    ("one batch", _with(one_batch), _FIRST + "the model runs once for 3"),
    ("with its graph", _with(with_its_graph), _FIRST + "still has its graph"),
    ("changes labels", _with(changes_labels), _SECOND + "labels of the window have changed"),
    ("all at once on ranks", _with(ranks=ddp_all_at_once), _THIRD + "activations of several"),
    ("one is none", _with(ranks=quiet_windows_of_one), _THIRD + "DDP exchanges no gradients"),
    ("the last micro-batch's loss", _with(the_last_loss), _FIRST + "returned loss is that of the"),
    ("the mean of the means", _with(skips_padding_by_mean), _SECOND + "mean of the micro-batches'"),
    ("counts padding", _with(counts_padding), _SECOND + "0.6 times.*the padding is counted"),
    ("one rank too few", _with(ranks=forgets_the_ranks), _THIRD + "1/2 of.*DDP takes the mean"),
    ("its own tokens only", _with(ranks=own_tokens), _THIRD + "each divided by its own tokens"),
    ("its own loss only", _with(ranks=own_loss), _THIRD + "the returned loss is this rank's share"),
    ("never exchanges", _with(ranks=always_quiet), _THIRD + "DDP exchanges no gradients"),
    ("257 tokens are 256", _with(ranks=counts_in_bf16), _THIRD + "a count of tokens in bf16"),
    ("quiet ever after", _with(ranks=stays_quiet), _THIRD + "after the window DDP still does not"),
    ("eval mode", _with(ranks=left_in_eval_mode), _THIRD + "after the window the model is in eval"),
    ("exchanges first", _with(ranks=exchanges_first), _THIRD + "is not that of rank 0"),
    ("skips padding", _with(ranks=skips_padding), _THIRD + "another number of bytes"),
    ("around backward only", _with(ranks=around_backward_only), _FOURTH + "no_sync=True.*3 times"),
    ("never quiet", _with(ranks=never_quiet), _FOURTH + "no_sync=True.*3 times"),
    ("quiet without being asked", _with(ranks=quiet_in_any_case), _FOURTH + "no_sync=False.*once"),
]
RIGHT = [("divides at the end", _with(divides_at_the_end, ddp_divides_at_the_end))]
