"""One update of a healthy rank, and the faulty versions of it that real programs show.

A healthy rank all-reduces, then all-gathers. Each fault is what the faulty rank does instead. For
the kinds in PARTNERS the healthy ranks run an update of their own: they create a group, time
messages, or train a layer.
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
_RATE = 0.5  # learning rate
_sleeps_s = 0.0  # delay before each message
WRONG_INTERFACE = "ib7"


@dataclass(frozen=True)
class Update:
    """The inputs of one update of a rank; `first`: whether it is the first faulty one."""

    rank: int
    world: int
    ones: Tensor
    group: dist.ProcessGroup | None = None  # the faulty rank and the next one
    model: nn.Linear | None = None
    first: bool = False


class NoMoreSamples(Exception):
    """Raised when this rank has run out of samples."""


def healthy(update: Update) -> None:
    """All-reduce, then all-gather."""
    summed(update)
    gathered(update)


def summed(update: Update) -> None:
    dist.all_reduce(update.ones)


def gathered(update: Update) -> None:
    dist.all_gather([torch.empty_like(update.ones) for _ in range(update.world)], update.ones)


# --- a rank that ends -------------------------------------------------------------------------


def kill(_update: Update) -> None:
    """SIGKILL, as from the out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def error(update: Update) -> None:
    """An exception on this rank only."""
    print(update.ones @ torch.ones(5))


def memory(update: Update) -> None:
    """An allocation that fails."""
    update.ones.new_empty(HUGE)


def port(_update: Update) -> None:
    """A second server on a port in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)


def short(_update: Update) -> None:
    """Fewer samples than the other ranks: it finishes early."""
    raise NoMoreSamples


# --- a rank that does not come ----------------------------------------------------------------


def hang(_update: Update) -> None:
    """An infinite loop."""
    while True:
        time.sleep(1)


def pattern(update: Update) -> None:
    """A hang in C with the GIL held: a regular expression that tries 2^40 matches."""
    re.match(r"(a+)+$", 40 * "a" + "b")
    healthy(update)


def slow(update: Update) -> None:
    """A straggler: a healthy update, but late."""
    time.sleep(0.2)
    healthy(update)


class Samples(Dataset[Tensor]):
    """Eight samples; reading number 3 triggers the fault."""

    def __init__(self, fault: Callable[[], None], length: int = 4) -> None:
        self.fault, self.length = fault, length

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 3:
            self.fault()
        return torch.ones(self.length)


def loader(update: Update) -> None:
    """A data-loader worker that hangs, as on an unresponsive file system."""
    for _batch in DataLoader(Samples(lambda: time.sleep(600)), num_workers=1):
        pass
    healthy(update)


def worker(update: Update) -> None:
    """A data-loader worker that is killed."""
    for _batch in DataLoader(Samples(lambda: os.kill(os.getpid(), signal.SIGKILL)), num_workers=1):
        pass
    healthy(update)


def small_files(_worker: int) -> None:
    """Limit file sizes, which also limits files in shared memory."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


def shm(update: Update) -> None:
    """A worker that passes a batch of 200 kB through shared memory limited to 64 KiB.

    The limit emulates a container's small /dev/shm, whose error is "No space left on device".
    """
    samples = Samples(lambda: None, length=50_000)
    batches = iter(DataLoader(samples, num_workers=1, worker_init_fn=small_files))
    workers = active_children()
    try:
        for _batch in batches:
            pass
    finally:
        batches._shutdown_workers()  # type: ignore[attr-defined]
        for worker in workers:  # torch leaves behind the files that it could not enlarge
            for left in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):
                left.unlink(missing_ok=True)
    healthy(update)


# --- a rank that calls something else ---------------------------------------------------------


def collective(update: Update) -> None:
    """A different collective from the other ranks."""
    dist.broadcast(update.ones, 0)
    gathered(update)


def shape(update: Update) -> None:
    """The same collective with a different size."""
    dist.all_reduce(update.ones.repeat(1000))
    gathered(update)


def dtype(update: Update) -> None:
    """The same collective with a different dtype."""
    dist.all_reduce(update.ones.double())
    gathered(update)


def order(update: Update) -> None:
    """The same two collectives in the opposite order."""
    gathered(update)
    summed(update)


def extra(update: Update) -> None:
    """An extra collective, as inside `if rank == 0:`."""
    dist.barrier()
    healthy(update)


def twice(update: Update) -> None:
    """An extra all-reduce of the same size, which matches the others' next one."""
    dist.all_reduce(torch.zeros(4))
    healthy(update)


def subgroup(update: Update) -> None:
    """The right collective, in a group of fewer ranks."""
    dist.all_reduce(update.ones, group=update.group)
    gathered(update)


# --- the network interface --------------------------------------------------------------------


def grouped(update: Update) -> None:
    """Create one more group on all ranks, as a program does for tensor parallelism."""
    dist.new_group(list(range(update.world)), backend="gloo")


def interface(update: Update) -> None:
    """This rank is configured with a network interface that does not exist."""
    os.environ["GLOO_SOCKET_IFNAME"] = WRONG_INTERFACE
    grouped(update)


# --- the link ---------------------------------------------------------------------------------


def exchanged(update: Update) -> dict[int, float]:
    """Time messages between all pairs of ranks: {source: seconds} for MESSAGE_BYTES."""
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
                dist.recv(go, source)  # so that a late sender does not count as a slow link
                start_s = time.perf_counter()
                dist.recv(data, source)
                seconds[source] = time.perf_counter() - start_s
    return seconds


def paced(_update: Update) -> None:
    """Throttle everything this rank sends from now on to SLOW_BYTES_PER_S.

    Linux can pace each connection without privileges; elsewhere, the rank sleeps before each send.
    """
    global _sleeps_s
    if not _pace_connections():
        _sleeps_s = MESSAGE_BYTES / SLOW_BYTES_PER_S


def _pace_connections() -> int:
    """Pace all sockets of this process; returns their number."""
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
    """A slow link: this rank's sends are throttled, its receives are not."""
    paced(update)
    messages(update)


def in_words(seconds: dict[int, float]) -> str:
    """ "1 MB from rank 0 in 1.2 ms, from rank 2 in 0.9 ms"."""
    each = ", ".join(f"from rank {rank} in {1e3 * s:.1f} ms" for rank, s in seconds.items())
    return f"{MESSAGE_BYTES / 1e6:g} MB {each}"


# --- the weights ------------------------------------------------------------------------------


def model_of(seed: int) -> nn.Linear:
    """A linear layer initialized from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(8, 4)


def trained(update: Update) -> float:
    """Make one update on a batch that all ranks share; returns the loss before it."""
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
    """Load weights that differ from the other ranks'."""
    assert update.model is not None
    update.model.load_state_dict(model_of(seed=1).state_dict())


def weights(update: Update) -> None:
    """Different initial weights: nothing fails, and every gradient is averaged."""
    if update.first:
        reseeded(update)
    trains(update)


# --- all ranks --------------------------------------------------------------------------------


def cycle(update: Update) -> None:
    """A deadlock: every rank receives from the previous one before it sends to the next."""
    dist.recv(update.ones, (update.rank - 1) % update.world)
    dist.send(update.ones, (update.rank + 1) % update.world)


def unused(update: Update) -> None:
    """An unused parameter: DDP waits for its gradient, and fails in the next iteration."""

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
# What healthy ranks run in these kinds, and the faulty rank before its fault.
PARTNERS: dict[str, Callable[[Update], object]] = {
    "interface": grouped,
    "link": messages,
    "weights": trains,
}
