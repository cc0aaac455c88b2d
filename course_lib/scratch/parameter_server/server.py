"""The server's end: rows of a table, to which it applies plain SGD.

Each trainer asks, computes and sends a gradient: in step with the others, or
without waiting for them. Li et al. 2014, "Scaling Distributed Machine
Learning with the Parameter Server", OSDI, sections 2 and 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.scratch.parameter_server.messages import STOP, Messages


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
