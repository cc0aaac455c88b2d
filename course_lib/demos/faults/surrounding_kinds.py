"""Faults around a rank, and of its weights: the program itself is the same on all ranks.

In these kinds the healthy ranks do something of their own, see PARTNERS: they make a group, send
messages of which each takes the time, or train a layer.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

MESSAGE_BYTES = 10**6
SLOW_BYTES_PER_S = 5 * 10**6
_SO_MAX_PACING_RATE = 47  # Linux's socket.h; Python has no name for it
_RATE = 0.5  # of learning
_sleeps_s = 0.0  # before each message
WRONG_INTERFACE = "ib7"


@dataclass(frozen=True)
class Update:
    """What a rank has for one update; `first`: the first in which one rank is broken."""

    rank: int
    world: int
    ones: Tensor
    group: dist.ProcessGroup | None = None  # of the broken rank and the next one
    model: nn.Linear | None = None
    first: bool = False


class NoMoreSamples(Exception):
    """This rank has done its part."""


# --- the network interface --------------------------------------------------------------------


def grouped(update: Update) -> None:
    """All ranks make one more group, as a program does for tensor parallelism."""
    dist.new_group(list(range(update.world)), backend="gloo")


def interface(update: Update) -> None:
    """This rank was told an interface that its machine does not have."""
    os.environ["GLOO_SOCKET_IFNAME"] = WRONG_INTERFACE
    grouped(update)


# --- the link ---------------------------------------------------------------------------------


def exchanged(update: Update) -> dict[int, float]:
    """Each pair of ranks in turn: seconds that MESSAGE_BYTES took, by the rank they came from."""
    seconds = {}
    go, data = update.ones.new_zeros(1), update.ones.new_zeros(MESSAGE_BYTES // 4)
    for source in range(update.world):
        for target in range(update.world):
            if source == target:
                continue
            if update.rank == source:
                dist.send(go, target)
                time.sleep(_sleeps_s)
                dist.send(data, target)
            if update.rank == target:
                dist.recv(go, source)  # a sender that comes late is no slow link
                start_s = time.perf_counter()
                dist.recv(data, source)
                seconds[source] = time.perf_counter() - start_s
    return seconds


def paced(_update: Update) -> None:
    """From now on what this rank sends leaves at SLOW_BYTES_PER_S, and no faster.

    Linux paces each connection by itself, without any privilege; where it does not, the rank sleeps
    before it sends.
    """
    global _sleeps_s
    if not _pace_connections():
        _sleeps_s = MESSAGE_BYTES / SLOW_BYTES_PER_S


def _pace_connections() -> int:
    """Of this process; how many there were."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                one.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, SLOW_BYTES_PER_S)
                count += 1
    return count


def messages(update: Update) -> None:
    print(in_words(exchanged(update)))


def link(update: Update) -> None:
    """All that this rank sends is slow; what it receives is not."""
    paced(update)
    messages(update)


def in_words(seconds: dict[int, float]) -> str:
    """ "1 MB from rank 0 in 1.2 ms, from rank 2 in 0.9 ms"."""
    each = ", ".join(f"from rank {rank} in {1e3 * s:.1f} ms" for rank, s in seconds.items())
    return f"{MESSAGE_BYTES / 1e6:g} MB {each}"


# --- the weights ------------------------------------------------------------------------------


def model_of(seed: int) -> nn.Linear:
    """A layer whose weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(8, 4)


def trained(update: Update) -> float:
    """One update on a batch that all ranks have; the loss before it."""
    assert update.model is not None
    batch = torch.linspace(-1, 1, 128, device=update.ones.device).reshape(16, 8)
    loss = (update.model(batch) - batch[:, :4]).square().mean()
    loss.backward()
    for parameter in update.model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.data -= _RATE * parameter.grad / update.world
        parameter.grad = None
    return loss.item()


def trains(update: Update) -> None:
    print(f"loss {trained(update):.4f}")


def reseeded(update: Update) -> None:
    """Other weights than those of the other ranks."""
    assert update.model is not None
    update.model.load_state_dict(model_of(seed=1).state_dict())


def weights(update: Update) -> None:
    """It begins with other weights: nothing fails, and every gradient is averaged."""
    if update.first:
        reseeded(update)
    trains(update)


# What the healthy ranks do in these kinds, and the broken one before its fault.
PARTNERS: dict[str, Callable[[Update], object]] = {
    "interface": grouped,
    "link": messages,
    "weights": trains,
}
