"""What trainers and servers send each other: a number of rows, then rows.

The other end must know the size of a tensor before it can receive it, so a
header with the number of rows goes before each request.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

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
