"""A table on servers: trainers pull rows and push their gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, rpc
from torch.distributed import autograd as dist_autograd
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed.nn.api.remote_module import RemoteModule
    from torch.distributed.optim import DistributedOptimizer
from torch.nn.functional import pad

from course_lib.scratch import wire

# What trainers and servers send each other: a number of rows, then rows.
#
# The other end must know the size of a tensor before it can receive it, so a
# header with the number of rows goes before each request.


STOP = -1  # announced instead of a number of rows: this trainer has finished


class Messages:
    """Messages between the ranks of a group, which go by their numbers."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def announce(self, rows: int, to: int) -> None:
        """Tell rank `to` how many rows follow, or STOP."""
        dist.send(torch.tensor([rows]), to, self.group)

    def announced(self, source: int | None = None) -> tuple[int, int]:
        """The sender of a header and its number; None: whoever comes first."""
        rows = torch.empty(1, dtype=torch.long)
        sender = dist.recv(rows, source, self.group)
        return sender, int(rows)

    def send(self, tensor: Tensor, to: int) -> None:
        """Send ids or rows; nothing if there are none."""
        if tensor.numel():
            dist.send(tensor, to, self.group)

    def receive_ids(self, count: int, source: int) -> Tensor:
        """Row numbers (count,), as they were sent."""
        return self._receive(torch.empty(count, dtype=torch.long), source)

    def receive_rows(self, count: int, width: int, source: int) -> Tensor:
        """Rows, or their gradients: (count, width)."""
        return self._receive(torch.empty(count, width), source)

    def _receive(self, into: Tensor, source: int) -> Tensor:
        if into.numel():
            dist.recv(into, source, self.group)
        return into


# The trainer's end: rows of a table that lies on servers.
#
# Row i lies on server i mod S, as its row i div S: neighbours are apart, and
# so are the rows that are used most, where rows are numbered by frequency. A
# batch may name a row many times; it travels once, and so does the sum of its
# gradients. Li et al. 2014, "Scaling Distributed Machine Learning with the
# Parameter Server", OSDI, sections 2 and 3.


class RemoteTable:
    """A table of rows of `width` numbers that lies on the ranks `servers`."""

    def __init__(
        self, width: int, servers: Sequence[int], messages: Messages
    ) -> None:
        self.width, self.servers = width, servers
        self.messages = messages

    def pull(self, ids: Tensor) -> Tensor:
        """The rows (…, width) numbered `ids` (…), each asked for once."""
        distinct, self.places = ids.unique(return_inverse=True)
        many = len(self.servers)
        # For each server, which of the distinct rows lie there.
        self.parts = [distinct % many == place for place in range(many)]
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(distinct[part] // many, server)
        rows = torch.empty(len(distinct), self.width)
        for server, part in zip(self.servers, self.parts, strict=True):
            count = int(part.sum())
            rows[part] = self.messages.receive_rows(count, self.width, server)
        return rows[self.places]

    def push(self, gradient: Tensor) -> None:
        """Send the gradient (…, width) of what was pulled last, by row."""
        summed = torch.zeros(len(self.parts[0]), self.width)
        summed.index_add_(0, self.places.flatten(), gradient.flatten(0, -2))
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(summed[part], server)

    def stop(self) -> None:
        """Tell servers that serve as they come that this trainer is done."""
        for server in self.servers:
            self.messages.announce(STOP, server)


# The server's end: rows of a table, to which it applies plain SGD.
#
# Each trainer asks, computes and sends a gradient: in step with the others, or
# without waiting for them. Li et al. 2014, "Scaling Distributed Machine
# Learning with the Parameter Server", OSDI, sections 2 and 3.


class ParameterServer:
    """Serves its `table` (rows, width) to the ranks `trainers`.

    `staleness` has an entry for each gradient of a trainer: how many updates
    the table saw after the rows were pulled and before it arrived.
    """

    def __init__(
        self,
        table: Tensor,
        lr: float,
        trainers: Sequence[int],
        messages: Messages,
    ) -> None:
        self.table, self.lr = table, lr
        self.trainers, self.messages = trainers, messages
        self.updates = 0
        self.asked: dict[int, tuple[Tensor, int]] = {}  # ids, updates then
        self.staleness: dict[int, list[int]] = {each: [] for each in trainers}

    def serve_together(self) -> Tensor:
        """One update of all trainers, in step: returns its whole gradient.

        All get their rows before the table changes; their gradients add up.
        Shape: (rows, width).
        """
        for trainer in self.trainers:
            _, count = self.messages.announced(trainer)
            self.send_rows(trainer, self.messages.receive_ids(count, trainer))
        whole = torch.zeros_like(self.table)
        for trainer in self.trainers:
            _, count = self.messages.announced(trainer)
            ids, rows = self.gradient(trainer, count)
            whole.index_add_(0, ids, rows)
        self.table -= self.lr * whole
        self.updates += 1
        return whole

    def serve_as_they_come(self) -> None:
        """Serve each request at once, until all trainers have stopped.

        No trainer waits for another, but rows may change while it computes
        with them: Dean et al. 2012, "Large Scale Distributed Deep Networks",
        section 4.1.
        """
        running = set(self.trainers)
        while running:
            trainer, count = self.messages.announced()
            if count == STOP:
                running.remove(trainer)
            elif trainer in self.asked:
                self.update(trainer, count)
            else:
                self.send_rows(
                    trainer, self.messages.receive_ids(count, trainer)
                )

    def update(self, trainer: int, count: int) -> None:
        """Apply one trainer's gradient at once."""
        ids, rows = self.gradient(trainer, count)
        self.table.index_add_(0, ids, rows, alpha=-self.lr)
        self.updates += 1

    def send_rows(self, trainer: int, ids: Tensor) -> None:
        """Answer a request, and remember it until its gradient comes."""
        self.asked[trainer] = ids, self.updates
        self.messages.send(self.table[ids], trainer)

    def gradient(self, trainer: int, count: int) -> tuple[Tensor, Tensor]:
        """The ids that a trainer had asked for, and their gradient."""
        ids, then = self.asked.pop(trainer)
        rows = self.messages.receive_rows(count, self.table.shape[1], trainer)
        self.staleness[trainer].append(self.updates - then)
        return ids, rows


# Between in step and as they come: nobody runs ahead by more than a bound.
#
# Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
# Parallel Parameter Server", NeurIPS.


class BoundedServer(ParameterServer):
    """Serves as they come, but lets a trainer that is too far ahead wait.

    Bound 0: nobody gets rows for the next update before all have sent their
    gradients of the last one.
    """

    def serve_within(self, bound: int) -> None:
        """Until all have stopped, none more than `bound` updates ahead."""
        done = dict.fromkeys(self.trainers, 0)  # updates of who still runs
        waiting: dict[
            int, Tensor
        ] = {}  # ids that trainers ahead have asked for
        while done:
            trainer, count = self.messages.announced()
            if count == STOP:
                del done[trainer]
            elif trainer in self.asked:
                self.update(trainer, count)
                done[trainer] += 1
            else:
                waiting[trainer] = self.messages.receive_ids(count, trainer)
            for trainer in [*waiting]:
                ahead = done[trainer] - min(done.values())
                # Who wants no rows from this server does not wait for any.
                if ahead <= bound or not len(waiting[trainer]):
                    self.send_rows(trainer, waiting.pop(trainer))


# What late gradients do: descent in one process, with a delay.
#
# Langford, Smola and Zinkevich 2009, "Slow Learners are Fast", NeurIPS.


def descend(
    start: Tensor,
    gradient: Callable[[Tensor], Tensor],
    *,
    lr: float,
    late: int,
    updates: int,
) -> list[Tensor]:
    """The weights before each update and after the last one.

    Each gradient is that of the weights `late` updates ago, as if it had
    travelled for so long; at the beginning, that of the first weights.
    """
    weights = [start]
    for update in range(updates):
        old = weights[max(0, update - late)]
        weights.append(weights[-1] - lr * gradient(old))
    return weights


# HybridModel: a table on a parameter server, a dense part in DDP.
#
# The sparse part is a remote module: calling it is a call to the server, and
# distributed autograd follows the call backwards. Damania et al. 2023,
# "PyTorch RPC", MLSys.


class HybridModel(nn.Module):
    """`table` lies on the server, `dense` on all trainers, equal by DDP."""

    def __init__(
        self,
        table: "RemoteModule",
        dense: nn.Module,
        trainers: dist.ProcessGroup,
    ) -> None:
        super().__init__()
        self.table = table
        self.dense = DistributedDataParallel(dense, process_group=trainers)

    def forward(self, bags: Tensor) -> Tensor:
        """Numbers of rows (n, k) in, what `dense` makes of their sums out."""
        # Not self.table(bags): a remote module has no hooks.
        rows: Tensor = self.table.forward(bags)
        device = next(self.dense.parameters()).device
        result: Tensor = self.dense(rows.to(device))
        return result


def update(
    loss: Callable[[], Tensor],
    optimizers: Iterable["DistributedOptimizer"],
    trainers: dist.ProcessGroup,
) -> Tensor:
    """One update of one trainer, while others make theirs; returns its loss.

    Gradients are kept by the context and not in `.grad`: a server has those of
    several trainers at once.
    """
    with dist_autograd.context() as context:
        found = loss()
        dist_autograd.backward(context, [found])
        # No row may change before everybody has looked theirs up. Under DDP
        # they have, as its all-reduce needed their gradients; without it only
        # this barrier waits.
        dist.barrier(trainers)
        for optimizer in optimizers:
            optimizer.step(context)
    # The next rows must be those of the updated table.
    dist.barrier(trainers)
    return found.detach()


def remote(
    parameters: Iterable[nn.Parameter],
) -> "list[rpc.RRef[nn.Parameter]]":
    """Own parameters, as DistributedOptimizer wants them."""
    return [rpc.RRef(parameter) for parameter in parameters]


# The sum of sparse gradients without a server: all ranks gather all rows.
#
# `nn.Embedding(sparse=True)` has a gradient of indices and values only. An
# all-reduce adds entry by entry, and the entries of two ranks belong to
# different rows; so every rank gathers all rows and adds them by number.


def sum_of_rows(gradient: Tensor) -> Tensor:
    """The sum over ranks of `gradient`, which is sparse, as is the result."""
    mine = gradient.coalesce()  # a row that was used twice now stands once
    ids, values = mine.indices()[0], mine.values()
    counts = wire.all_gather(torch.tensor([len(ids)]))
    most = int(counts.max())
    missing = most - len(ids)  # only parts of one length can be gathered
    ids = wire.all_gather(pad(ids, (0, missing)))
    values = wire.all_gather(pad(values, (0, 0, 0, missing)))
    filled = (torch.arange(most) < counts[:, None]).flatten()
    rows = ids[filled][None], values[filled]
    return torch.sparse_coo_tensor(*rows, gradient.shape).coalesce()
