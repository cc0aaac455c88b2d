"""A parameter server: a table on one rank, from which trainers take rows.

In each update a trainer sends the numbers of its rows, gets the rows, and
sends their gradients. Li et al. 2014, "Scaling Distributed Machine Learning
with the Parameter Server", OSDI, sections 2 and 3.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class RemoteTable:
    """The trainer's end: rows of a table that lies on rank `server`."""

    def __init__(self, width: int, server: int, group: ProcessGroup) -> None:
        self.width, self.server, self.group = width, server, group

    def pull(self, ids: Tensor) -> Tensor:
        """The rows (ids, width) numbered `ids`, which must be distinct."""
        self._announce(len(ids))
        dist.send(ids, self.server, self.group)
        rows = torch.empty(len(ids), self.width)
        dist.recv(rows, self.server, self.group)
        return rows

    def push(self, gradient: Tensor) -> None:
        """Send the gradient (ids, width) of the rows last pulled."""
        self._announce(len(gradient))
        dist.send(gradient, self.server, self.group)

    def stop(self) -> None:
        """Tell `serve_as_they_come` that this trainer has finished."""
        self._announce(0)

    def _announce(self, rows: int) -> None:
        """Tell the other end the size of the message that follows."""
        dist.send(torch.tensor([rows]), self.server, self.group)


class ParameterServer:
    """The server's end: a table (rows, width), to which it applies SGD.

    `staleness` has an entry for each gradient: how many updates the table saw
    after the rows were pulled and before this gradient of them arrived.
    """

    def __init__(
        self,
        table: Tensor,
        lr: float,
        trainers: list[int],
        group: ProcessGroup,
    ) -> None:
        self.table, self.lr, self.group = table, lr, group
        self.trainers = trainers
        self.updates = 0
        self.asked: dict[int, tuple[Tensor, int]] = {}  # ids, updates then
        self.staleness: list[int] = []

    def serve_together(self) -> Tensor:
        """One update of all trainers, in step: returns its whole gradient.

        All get their rows before the table changes; their gradients add up.
        Shape: (rows, width).
        """
        for trainer in self.trainers:
            self._send_rows(trainer, self._announced(trainer)[1])
        whole = torch.zeros_like(self.table)
        for trainer in self.trainers:
            ids, rows = self._gradient(trainer, self._announced(trainer)[1])
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
        running = len(self.trainers)
        while running:
            trainer, rows = self._announced(None)
            if not rows:
                running -= 1
            elif trainer not in self.asked:
                self._send_rows(trainer, rows)
            else:
                ids, gradient = self._gradient(trainer, rows)
                self.table.index_add_(0, ids, gradient, alpha=-self.lr)
                self.updates += 1

    def _announced(self, trainer: int | None) -> tuple[int, int]:
        """Sender and number of rows; None: whichever trainer is first."""
        rows = torch.empty(1, dtype=torch.long)
        sender = dist.recv(rows, trainer, self.group)
        return sender, int(rows)

    def _send_rows(self, trainer: int, count: int) -> None:
        ids = torch.empty(count, dtype=torch.long)
        dist.recv(ids, trainer, self.group)
        self.asked[trainer] = ids, self.updates
        dist.send(self.table[ids], trainer, self.group)

    def _gradient(self, trainer: int, count: int) -> tuple[Tensor, Tensor]:
        ids, then = self.asked.pop(trainer)
        rows = torch.empty(count, self.table.shape[1])
        dist.recv(rows, trainer, self.group)
        self.staleness.append(self.updates - then)
        return ids, rows
