"""One update of a healthy rank, and of a rank that is broken in one of the ways of real programs.

A healthy rank sums, then gathers. Each fault is what the broken rank does instead. In the faults
around a rank, and of its weights, the healthy ranks do something of their own, see PARTNERS: they
make a group, send messages of which each takes the time, or train a layer.
"""

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

HUGE = 10**15  # elements: no machine has 4 PB
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


def healthy(update: Update) -> None:
    """Sum over the ranks, then gather from them."""
    summed(update)
    gathered(update)


def summed(update: Update) -> None:
    dist.all_reduce(update.ones)


def gathered(update: Update) -> None:
    dist.all_gather([torch.empty_like(update.ones) for _ in range(update.world)], update.ones)


# --- a rank that ends -------------------------------------------------------------------------


def kill(_update: Update) -> None:
    """As the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def error(update: Update) -> None:
    """An exception that the other ranks do not have."""
    print(update.ones @ torch.ones(5))


def memory(update: Update) -> None:
    """An allocation that is refused."""
    update.ones.new_empty(HUGE)


def port(_update: Update) -> None:
    """A second server on one port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)


def short(_update: Update) -> None:
    """Fewer samples than the other ranks: it is done before them."""
    raise NoMoreSamples


# --- a rank that does not come ----------------------------------------------------------------


def hang(_update: Update) -> None:
    """Something that does not end."""
    while True:
        time.sleep(1)


def pattern(update: Update) -> None:
    """The same in C, with Python's lock: a pattern that tries 2^40 ways to match."""
    re.match(r"(a+)+$", 40 * "a" + "b")
    healthy(update)


def slow(update: Update) -> None:
    """A straggler: it does the same, later."""
    time.sleep(0.2)
    healthy(update)


class Samples(Dataset[Tensor]):
    """Eight samples, of which one is never read."""

    def __init__(self, fault: Callable[[], None], length: int = 4) -> None:
        self.fault, self.length = fault, length

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 3:
            self.fault()
        return torch.ones(self.length)


def loader(update: Update) -> None:
    """A worker that reads forever, from a file system that does not answer."""
    for _batch in DataLoader(Samples(lambda: time.sleep(600)), num_workers=1):
        pass
    healthy(update)


def worker(update: Update) -> None:
    """A worker that the system ends."""
    for _batch in DataLoader(Samples(lambda: os.kill(os.getpid(), signal.SIGKILL)), num_workers=1):
        pass
    healthy(update)


def small_files(_worker: int) -> None:
    """A limit on the size of files, which those in shared memory have as well."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


def shm(update: Update) -> None:
    """A worker that passes a batch of 200 kB through shared memory that takes 64 KiB.

    A limit stands for the small /dev/shm of a container, which then says "No space left on device".
    """
    samples = Samples(lambda: None, length=50_000)
    batches = iter(DataLoader(samples, num_workers=1, worker_init_fn=small_files))
    workers = active_children()
    try:
        for _batch in batches:
            pass
    finally:
        batches._shutdown_workers()  # type: ignore[attr-defined]
        for worker in workers:  # torch leaves the empty files that it could not enlarge
            for left in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):
                left.unlink(missing_ok=True)
    healthy(update)


# --- a rank that calls something else ---------------------------------------------------------


def collective(update: Update) -> None:
    """Another collective than the other ranks."""
    dist.broadcast(update.ones, 0)
    gathered(update)


def shape(update: Update) -> None:
    """The same collective of another size."""
    dist.all_reduce(update.ones.repeat(1000))
    gathered(update)


def dtype(update: Update) -> None:
    """The same collective of another type."""
    dist.all_reduce(update.ones.double())
    gathered(update)


def order(update: Update) -> None:
    """The same two collectives, the other way round."""
    gathered(update)
    summed(update)


def extra(update: Update) -> None:
    """What stands behind `if rank == 0:`."""
    dist.barrier()
    healthy(update)


def twice(update: Update) -> None:
    """One more of the same kind and size: it is summed with what others sum next."""
    dist.all_reduce(torch.zeros(4))
    healthy(update)


def subgroup(update: Update) -> None:
    """The right collective, in a group of fewer ranks."""
    dist.all_reduce(update.ones, group=update.group)
    gathered(update)


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


# --- all ranks --------------------------------------------------------------------------------


def cycle(update: Update) -> None:
    """Every rank receives from the one before, and would then send to the next."""
    dist.recv(update.ones, (update.rank - 1) % update.world)
    dist.send(update.ones, (update.rank + 1) % update.world)


def unused(update: Update) -> None:
    """DDP waits for the gradient of every parameter, and finds out in the next iteration."""

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            used: Tensor = self.used(x)
            return used

    model = DistributedDataParallel(Forgetful().to(update.ones.device))
    for _ in range(2):
        model(update.ones).sum().backward()


EVERYWHERE = ("cycle", "unused")  # every rank does the same wrong thing
_ENDS = (kill, error, memory, port, short)
_WAITS = (hang, pattern, slow, loader, worker, shm)
_DIFFERS = (collective, shape, dtype, order, extra, twice, subgroup)
_AROUND = (interface, link, weights)
KINDS: dict[str, Callable[[Update], None]] = {"none": healthy} | {
    kind.__name__: kind for kind in (*_ENDS, *_WAITS, *_DIFFERS, *_AROUND, cycle, unused)
}
# What the healthy ranks do in these kinds, and the broken one before its fault.
PARTNERS: dict[str, Callable[[Update], object]] = {
    "interface": grouped,
    "link": messages,
    "weights": trains,
}
