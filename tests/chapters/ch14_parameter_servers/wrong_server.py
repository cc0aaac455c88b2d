"""Parameter servers that the check must refuse, as patches of the course's own."""

import torch

from course_lib.scratch.parameter_server import STOP
from course_lib.scratch.parameter_server import ParameterServer as OwnServer
from course_lib.scratch.parameter_server import RemoteTable as OwnTable
from tests.checking.builds.patches import patched, versions

_TABLES = """
rows in rising order
- return rows[self.places]
+ rows = rows[self.places]
+ return rows[ids.flatten().argsort()].view_as(rows) if ids.dim() == 1 else rows
? 1 is the rows in rising order
one for all tables
+ RemoteTable.kept = self.places, self.parts
+ return rows[self.places]
- summed = torch.zeros(len(self.parts[0]), self.width)
+ self.places, self.parts = RemoteTable.kept
+ summed = torch.zeros(len(self.parts[0]), self.width)
? 1 which another RemoteTable has pulled
no dedup
- distinct, self.places = ids.unique(return_inverse=True)
+ distinct, self.places = ids.flatten(), torch.arange(ids.numel()).view(ids.shape)
? 2 sends more bytes.*travels once
the first ids
+ self.first = getattr(self, "first", ids)
+ ids = self.first if ids.shape == self.first.shape else ids
+ distinct, self.places = ids.unique(return_inverse=True)
? 1 update 1: what pull returns
assigns
- summed.index_add_(0, self.places.flatten(), gradient.flatten(0, -2))
+ for place, row in zip(self.places.flatten(), gradient.flatten(0, -2), strict=True):
+     summed[place] = row
? 2 is that of one gradient for each row
blocks of rows
- many = len(self.servers)
+ many = len(self.servers)
+ if many > 1:
+     blocks = (ids % 4 * 3 + ids // 4).clamp(max=10)
+     distinct, self.places = blocks.unique(return_inverse=True)
? 3 cut into blocks
the whole table's numbers
- self.messages.send(distinct[part] // many, server)
+ self.messages.send(distinct[part], server)
? 3 IndexError
three wide
- self.width, self.servers = width, servers
+ self.width, self.servers = 3, servers
? 3
from rank 0 on
+ self.width, self.servers = width, range(len(servers))
? 3 rows of servers 0, 1, …, not of the ranks
"""
_SERVERS = """
one after the other
- for trainer in self.trainers:
-     _, count = self.messages.announced(trainer)
-     self.send_rows(trainer, self.messages.receive_ids(count, trainer))
- whole = torch.zeros_like(self.table)
+ whole = torch.zeros_like(self.table)
- _, count = self.messages.announced(trainer)
- ids, rows = self.gradient(trainer, count)
- whole.index_add_(0, ids, rows)
+ _, count = self.messages.announced(trainer)
+ self.send_rows(trainer, self.messages.receive_ids(count, trainer))
+ _, count = self.messages.announced(trainer)
+ ids, rows = self.gradient(trainer, count)
+ whole.index_add_(0, ids, rows)
+ self.table.index_add_(0, ids, rows, alpha=-self.lr)
- self.table -= self.lr * whole
+ pass
? 1 already applied
the mean
- self.table -= self.lr * whole
+ self.table -= self.lr * whole / len(self.trainers)
? 1 1/2 of what is expected: the mean
uphill
+ self.table += self.lr * whole
? 1 the gradient was added
the last trainer
- whole.index_add_(0, ids, rows)
+ whole[ids] = rows
? 1 that of the last trainer alone
in turn
- trainer, count = self.messages.announced()
+ trainer, count = self.messages.announced(min(running))
? 4 nothing moves any more
counts from the start
- self.staleness[trainer].append(self.updates - then)
+ self.staleness[trainer].append(self.updates)
? 4 staleness of trainer 2: part 2 is 1
its own rate
- self.table, self.lr = table, lr
+ self.table, self.lr = table, 0.5
? 3 change of the table is 2 times
waits for all
- ids, rows = self.gradient(trainer, count)
- self.table.index_add_(0, ids, rows, alpha=-self.lr)
+ self.kept = [*getattr(self, "kept", []), self.gradient(trainer, count)]
- running.remove(trainer)
+ running.remove(trainer)
+ for ids, rows in [] if running else self.kept:
+     self.table.index_add_(0, ids, rows, alpha=-self.lr)
? 4 before its own gradient
"""
WRONG = versions(OwnTable, lambda table: [table, OwnServer], _TABLES)
WRONG += versions(OwnServer, lambda server: [OwnTable, server], _SERVERS)


class RemoteTable:
    """Dictionaries and lists, row by row."""

    def __init__(self, width, servers, messages):
        self.width, self.servers, self.messages = width, servers, messages

    def pull(self, ids):
        self.ids = ids
        many = len(self.servers)
        wanted = dict.fromkeys(ids.flatten().tolist())
        self.order = [[row for row in wanted if row % many == s] for s in range(many)]
        for server, rows in zip(self.servers, self.order, strict=True):
            self.messages.announce(len(rows), server)
            there = torch.tensor([row // many for row in rows], dtype=torch.long)
            self.messages.send(there, server)
        table = {}
        for server, rows in zip(self.servers, self.order, strict=True):
            found = self.messages.receive_rows(len(rows), self.width, server)
            table.update(zip(rows, found, strict=True))
        pulled = [table[row] for row in ids.flatten().tolist()]
        return torch.stack(pulled).view(*ids.shape, self.width)

    def push(self, gradient):
        sums = {}
        for row, its in zip(self.ids.flatten().tolist(), gradient.flatten(0, -2), strict=True):
            sums[row] = sums[row] + its if row in sums else its
        for server, rows in zip(self.servers, self.order, strict=True):
            self.messages.announce(len(rows), server)
            if rows:
                self.messages.send(torch.stack([sums[row] for row in rows]), server)

    def stop(self):
        for server in self.servers:
            self.messages.announce(STOP, server)


class ParameterServer:
    """Gradients in a list, rows changed one at a time."""

    def __init__(self, table, lr, trainers, messages):
        self.table, self.lr, self.trainers, self.messages = table, lr, trainers, messages
        self.updates = 0
        self.staleness = {trainer: [] for trainer in trainers}
        self.asked = {}

    def serve_together(self):
        wanted = {}
        for trainer in self.trainers:
            sender, count = self.messages.announced(trainer)
            wanted[sender] = self.messages.receive_ids(count, sender)
            self.messages.send(self.table[wanted[sender]], sender)
        gradient = self.table * 0
        for trainer, ids in wanted.items():
            self.messages.announced(trainer)
            rows = self.messages.receive_rows(len(ids), self.table.shape[1], trainer)
            gradient[ids] += rows
        self.table = self.table - self.lr * gradient
        return gradient

    def serve_as_they_come(self):
        stopped = 0
        while stopped < len(self.trainers):
            trainer, count = self.messages.announced()
            if count == STOP:
                stopped += 1
            elif self.asked.get(trainer) is None:
                ids = self.messages.receive_ids(count, trainer)
                self.asked[trainer] = ids, self.updates
                self.messages.send(self.table[ids], trainer)
            else:
                ids, then = self.asked[trainer]
                rows = self.messages.receive_rows(len(ids), self.table.shape[1], trainer)
                self.table[ids] -= self.lr * rows
                self.staleness[trainer].append(self.updates - then)
                self.updates += 1
                self.asked[trainer] = None


_SAME_BUFFER = patched(
    OwnServer,
    "return whole",
    "self.whole = getattr(self, 'whole', torch.empty_like(whole))\nreturn self.whole.copy_(whole)",
)
RIGHT = [
    ("row by row", [RemoteTable, ParameterServer]),
    ("returns one buffer", [OwnTable, _SAME_BUFFER]),
]
AS_MINE = ""
