"""Parameter servers: trainers pull table rows and push their gradients."""

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

# The protocol between trainers and servers: a row count, then the rows.
#
# The receiver must know the size of a tensor before it can receive it, so a
# header with the number of rows precedes each request.


STOP = -1  # sent in place of a row count: this trainer has finished


class Messages:
    """Messages between the ranks of a group, addressed by global rank."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def announce(self, rows: int, to: int) -> None:
        """Send rank `to` the number of rows that follow, or STOP."""
        dist.send(torch.tensor([rows]), to, self.group)

    def announced(self, source: int | None = None) -> tuple[int, int]:
        """Receive a header: (sender, rows); source None accepts any rank."""
        rows = torch.empty(1, dtype=torch.long)
        sender = dist.recv(rows, source, self.group)
        return sender, int(rows)

    def send(self, tensor: Tensor, to: int) -> None:
        """Send ids or rows; an empty tensor is not sent."""
        if tensor.numel():
            dist.send(tensor, to, self.group)

    def receive_ids(self, count: int, source: int) -> Tensor:
        """Receive row numbers (count,), in the order sent."""
        return self._receive(torch.empty(count, dtype=torch.long), source)

    def receive_rows(self, count: int, width: int, source: int) -> Tensor:
        """Receive rows, or their gradients: (count, width)."""
        return self._receive(torch.empty(count, width), source)

    def _receive(self, into: Tensor, source: int) -> Tensor:
        if into.numel():
            dist.recv(into, source, self.group)
        return into


# The trainer's side: rows of a table stored on servers.
#
# Row i is row i div S of server i mod S. This spreads neighbouring rows, and
# the most used ones where rows are numbered by frequency. A row that occurs
# many times in a batch is sent once, and so is the sum of its gradients.
# Li et al. 2014, "Scaling Distributed Machine Learning with the
# Parameter Server", OSDI, sections 2 and 3.


class RemoteTable:
    """A table with rows of `width` numbers, sharded over ranks `servers`."""

    def __init__(
        self, width: int, servers: Sequence[int], messages: Messages
    ) -> None:
        self.width, self.servers = width, servers
        self.messages = messages

    def pull(self, ids: Tensor) -> Tensor:
        """The rows (…, width) for `ids` (…), each requested once."""
        distinct, self.places = ids.unique(return_inverse=True)
        many = len(self.servers)
        # For each server, a mask of the distinct rows it stores.
        self.parts = [distinct % many == index for index in range(many)]
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(distinct[part] // many, server)
        rows = torch.empty(len(distinct), self.width)
        for server, part in zip(self.servers, self.parts, strict=True):
            count = int(part.sum())
            rows[part] = self.messages.receive_rows(count, self.width, server)
        return rows[self.places]

    def push(self, gradient: Tensor) -> None:
        """Send the gradient (…, width) of the last pull, summed by row."""
        summed = torch.zeros(len(self.parts[0]), self.width)
        summed.index_add_(0, self.places.flatten(), gradient.flatten(0, -2))
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(summed[part], server)

    def stop(self) -> None:
        """Tell asynchronous servers that this trainer has finished."""
        for server in self.servers:
            self.messages.announce(STOP, server)


# The server's side: rows of a table, to which it applies plain SGD.
#
# Each trainer pulls rows, computes and pushes a gradient, in step with the
# others or without waiting for them. Li et al. 2014, "Scaling Distributed
# Machine Learning with the Parameter Server", OSDI, sections 2 and 3.


class ParameterServer:
    """Serves its `table` (rows, width) to the ranks `trainers`.

    `staleness` has one entry per gradient of a trainer: the number of updates
    to the table between the pull and the arrival of the gradient.
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
        self.asked: dict[
            int, tuple[Tensor, int]
        ] = {}  # ids, `updates` at pull
        self.staleness: dict[int, list[int]] = {each: [] for each in trainers}

    def serve_together(self) -> Tensor:
        """One synchronous update; returns the summed gradient (rows, width).

        All trainers get their rows before the table changes.
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
        """Serve requests in order of arrival until all trainers stop.

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
        """Receive and apply one trainer's gradient."""
        ids, rows = self.gradient(trainer, count)
        self.table.index_add_(0, ids, rows, alpha=-self.lr)
        self.updates += 1

    def send_rows(self, trainer: int, ids: Tensor) -> None:
        """Send the requested rows; keep their ids for the gradient."""
        self.asked[trainer] = ids, self.updates
        self.messages.send(self.table[ids], trainer)

    def gradient(self, trainer: int, count: int) -> tuple[Tensor, Tensor]:
        """Receive the gradient of a trainer's last pull: (ids, rows)."""
        ids, then = self.asked.pop(trainer)
        rows = self.messages.receive_rows(count, self.table.shape[1], trainer)
        self.staleness[trainer].append(self.updates - then)
        return ids, rows


# Bounded staleness: no trainer runs ahead by more than a bound.
#
# Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
# Parallel Parameter Server", NeurIPS.


class BoundedServer(ParameterServer):
    """Serves asynchronously, but makes a trainer that is too far ahead wait.

    Bound 0: no trainer gets rows for the next update before all have sent
    their gradients of the last one.
    """

    def serve_within(self, bound: int) -> None:
        """Serve until all stop, none more than `bound` updates ahead."""
        done = dict.fromkeys(self.trainers, 0)  # updates of running trainers
        waiting: dict[
            int, Tensor
        ] = {}  # ids requested by trainers that are too far ahead
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
                # An empty request is answered at once.
                if ahead <= bound or not len(waiting[trainer]):
                    self.send_rows(trainer, waiting.pop(trainer))


# The effect of stale gradients: delayed descent in one process.
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

    Each gradient is taken at the weights `late` updates ago; in the first
    updates, at the initial weights.
    """
    weights = [start]
    for update in range(updates):
        old = weights[max(0, update - late)]
        weights.append(weights[-1] - lr * gradient(old))
    return weights


# HybridModel: a table on a parameter server, a dense part in DDP.
#
# The sparse part is a remote module: calling it is an RPC to the server, and
# distributed autograd runs backward through that RPC. Damania et al. 2023,
# "PyTorch RPC", MLSys.


class HybridModel(nn.Module):
    """A `table` on the server, and `dense` on all trainers under DDP."""

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
        """Row numbers (n, k) -> `dense` of the sum of each bag's rows."""
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
    """One update of one trainer, concurrent with the others; returns its loss.

    Gradients are in the autograd context and not in `.grad`: a server has
    those of several trainers at once.
    """
    with dist_autograd.context() as context:
        value = loss()
        dist_autograd.backward(context, [value])
        # No row may change before all trainers have looked theirs up. Under
        # DDP they have, as its all-reduce needed their gradients; without DDP
        # only this barrier ensures it.
        dist.barrier(trainers)
        for optimizer in optimizers:
            optimizer.step(context)
    # The next rows must be those of the updated table.
    dist.barrier(trainers)
    return value.detach()


def remote(
    parameters: Iterable[nn.Parameter],
) -> "list[rpc.RRef[nn.Parameter]]":
    """Wrap local parameters in RRefs, as DistributedOptimizer expects."""
    return [rpc.RRef(parameter) for parameter in parameters]


# The sum of sparse gradients without a server: all ranks gather all rows.
#
# `nn.Embedding(sparse=True)` has a gradient of indices and values only. An
# all-reduce adds entry by entry, but the entries of two ranks belong to
# different rows; so every rank gathers all rows and sums them by index.


def sum_of_rows(gradient: Tensor) -> Tensor:
    """The sum over ranks of a sparse `gradient`, as a sparse tensor."""
    mine = gradient.coalesce()  # duplicate rows are summed
    ids, values = mine.indices()[0], mine.values()
    counts = wire.all_gather(torch.tensor([len(ids)]))
    most = int(counts.max())
    missing = most - len(ids)  # all_gather needs equal lengths
    ids = wire.all_gather(pad(ids, (0, missing)))
    values = wire.all_gather(pad(values, (0, 0, 0, missing)))
    filled = (torch.arange(most) < counts[:, None]).flatten()
    rows = ids[filled][None], values[filled]
    return torch.sparse_coo_tensor(*rows, gradient.shape).coalesce()
