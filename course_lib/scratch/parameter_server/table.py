"""The trainer's end: rows of a table that lies on servers.

Row i lies on server i mod S, as its row i div S: neighbours are apart, and
so are the rows that are used most, where rows are numbered by frequency.
A batch may name a row many times; it travels once, and so does the sum of its
gradients. Li et al. 2014, "Scaling Distributed Machine Learning with the
Parameter Server", OSDI, sections 2 and 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.scratch.parameter_server.messages import STOP, Messages


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
