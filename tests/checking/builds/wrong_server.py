"""Parameter servers that the check must refuse: (thought, answer, words of the refusal)."""

import torch

from course_lib.scratch.parameter_server import ParameterServer as OwnServer
from course_lib.scratch.parameter_server import RemoteTable as OwnTable
from course_lib.scratch.parameter_server.messages import STOP


def _with(table=OwnTable, server=OwnServer):
    """Both ends, under their names."""
    table.__name__, server.__name__ = "RemoteTable", "ParameterServer"
    return [table, server]


class RisingOrder(OwnTable):
    def pull(self, ids):
        rows = super().pull(ids)
        return rows[ids.flatten().argsort()].view_as(rows) if ids.dim() == 1 else rows


class AsksForEachDraw(OwnTable):
    """Right numbers: but a row that is drawn twice travels twice."""

    def pull(self, ids):
        self.flat = ids.flatten()
        many = len(self.servers)
        self.parts = [self.flat % many == place for place in range(many)]
        rows = torch.empty(len(self.flat), self.width)
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(self.flat[part] // many, server)
        for server, part in zip(self.servers, self.parts, strict=True):
            rows[part] = self.messages.receive_rows(int(part.sum()), self.width, server)
        return rows.view(*ids.shape, self.width)

    def push(self, gradient):
        flat = gradient.flatten(0, -2)
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(flat[part], server)


class LastOneWins(OwnTable):
    """Assigns where it should add."""

    def push(self, gradient):
        count = len(self.parts[0])
        kept = torch.zeros(count, self.width)
        for place, row in zip(self.places.flatten(), gradient.flatten(0, -2), strict=True):
            kept[place] = row
        self.places = torch.arange(count)
        super().push(kept)


class BlocksOfRows(OwnTable):
    """The first half of the rows on the first server."""

    def pull(self, ids):
        if len(self.servers) == 1:
            return super().pull(ids)
        return super().pull((ids % 4 * 3 + ids // 4).clamp(max=10))


class NumbersOfTheWholeTable(OwnTable):
    """Asks a server by numbers that it does not have."""

    def pull(self, ids):
        if len(self.servers) == 1:
            return super().pull(ids)
        distinct, self.places = ids.unique(return_inverse=True)
        self.parts = [distinct % 3 == place for place in range(3)]
        rows = torch.empty(len(distinct), self.width)
        for server, part in zip(self.servers, self.parts, strict=True):
            self.messages.announce(int(part.sum()), server)
            self.messages.send(distinct[part], server)
        for server, part in zip(self.servers, self.parts, strict=True):
            rows[part] = self.messages.receive_rows(int(part.sum()), self.width, server)
        return rows[self.places]


class OneAfterTheOther(OwnServer):
    """Takes a trainer's gradient before the next one gets its rows."""

    def serve_together(self):
        trainers, whole = self.trainers, torch.zeros_like(self.table)
        for trainer in trainers:
            self.trainers = [trainer]
            whole += super().serve_together()
        self.trainers = trainers
        return whole


class Mean(OwnServer):
    def serve_together(self):
        before = self.table.clone()
        whole = super().serve_together()
        self.table = before - self.lr * whole / len(self.trainers)
        return whole


class Uphill(OwnServer):
    def serve_together(self):
        before = self.table.clone()
        whole = super().serve_together()
        self.table = before + self.lr * whole
        return whole


class LastTrainer(OwnServer):
    """Assigns the gradients of trainers where it should add them."""

    def serve_together(self):
        before, found = self.table.clone(), []
        self.gradient = lambda *its: found.append(OwnServer.gradient(self, *its)) or found[-1]
        super().serve_together()
        whole = torch.zeros_like(before)
        for ids, rows in found:
            whole[ids] = rows
        self.table = before - self.lr * whole
        return whole


class InTurn(OwnServer):
    """Waits for the trainers in their order, where the first one waits for the last."""

    def serve_as_they_come(self):
        running = list(self.trainers)
        while running:
            for trainer in list(running):
                _, count = self.messages.announced(trainer)
                if count == STOP:
                    running.remove(trainer)
                    continue
                self.send_rows(trainer, self.messages.receive_ids(count, trainer))
                self.update(*self.messages.announced(trainer))


class CountsFromTheStart(OwnServer):
    def gradient(self, trainer, count):
        ids, rows = super().gradient(trainer, count)
        self.staleness[trainer][-1] = self.updates
        return ids, rows


class CountsPulls(OwnServer):
    """What other trainers have pulled, where their updates are to be counted."""

    pulls = 0

    def send_rows(self, trainer, ids):
        self.pulls += 1
        super().send_rows(trainer, ids)
        self.asked[trainer] = ids, self.pulls

    def gradient(self, trainer, count):
        self.updates, updates = self.pulls, self.updates
        found = super().gradient(trainer, count)
        self.updates = updates
        return found


class OneTooMany(OwnServer):
    def gradient(self, trainer, count):
        self.updates += 1
        found = super().gradient(trainer, count)
        self.updates -= 1
        return found


class ThreeWide(OwnTable):
    def __init__(self, width, servers, messages):
        super().__init__(3, servers, messages)


class OfTwoServers(OwnTable):
    def pull(self, ids):
        self.servers, servers = self.servers[:2], self.servers
        for server in servers[2:]:
            self.messages.announce(0, server)
        return super().pull(ids)


class RemembersTheFirst(OwnTable):
    """Works out once which rows are wanted."""

    def pull(self, ids):
        self.first = getattr(self, "first", ids)
        return super().pull(self.first if ids.shape == self.first.shape else ids)


class FromRank0On(OwnTable):
    """Right where the servers are the first ranks, in their order."""

    def __init__(self, width, servers, messages):
        super().__init__(width, range(len(servers)), messages)


class OneForAllTables(OwnTable):
    """Keeps on the class what was pulled."""

    def pull(self, ids):
        rows = super().pull(ids)
        OneForAllTables.kept = self.places, self.parts
        return rows

    def push(self, gradient):
        self.places, self.parts = OneForAllTables.kept
        super().push(gradient)


class HalfRate(OwnServer):
    def __init__(self, table, lr, trainers, messages):
        super().__init__(table, 0.5, trainers, messages)


class SameBuffer(OwnServer):
    """Right: returns the same tensor each time."""

    def serve_together(self):
        whole = super().serve_together()
        if not hasattr(self, "whole"):
            self.whole = torch.empty_like(whole)
        return self.whole.copy_(whole)


class WaitsForAll(OwnServer):
    """Keeps the gradients until the end."""

    def serve_as_they_come(self):
        self.kept = []
        super().serve_as_they_come()
        for ids, rows in self.kept:
            self.table.index_add_(0, ids, rows, alpha=-self.lr)

    def update(self, trainer, count):
        self.kept.append(self.gradient(trainer, count))
        self.updates += 1


_BEFORE = "step 1 of 4.*"
WRONG = [
    ("rows in rising order", _with(RisingOrder), _BEFORE + "is the rows in rising order"),
    ("one after the other", _with(server=OneAfterTheOther), _BEFORE + "already applied"),
    ("the mean", _with(server=Mean), _BEFORE + "1/2 of what is expected: the mean"),
    ("uphill", _with(server=Uphill), _BEFORE + "the gradient was added"),
    ("the last trainer", _with(server=LastTrainer), _BEFORE + "that of the last trainer alone"),
    ("no dedup", _with(AsksForEachDraw), "step 2 of 4.*sends more bytes.*travels once"),
    ("assigns", _with(LastOneWins), "step 2 of 4.*is that of one gradient for each row"),
    ("blocks of rows", _with(BlocksOfRows), "step 3 of 4.*cut into blocks"),
    ("the whole table's numbers", _with(NumbersOfTheWholeTable), "step 3 of 4.*IndexError"),
    ("in turn", _with(server=InTurn), "step 4 of 4.*nothing moves any more"),
    ("counts from the start", _with(server=CountsFromTheStart), "step 4 of 4.*staleness has for"),
    ("counts pulls", _with(server=CountsPulls), "step 4 of 4.*staleness has for"),
    ("one too many", _with(server=OneTooMany), "step 4 of 4.*staleness has for trainer 2"),
    ("three wide", _with(ThreeWide), "step 3 of 4"),
    ("of two servers", _with(OfTwoServers), "step 3 of 4"),
    ("the first ids", _with(RemembersTheFirst), "step 1 of 4.*update 1: what pull returns"),
    (
        "from rank 0 on",
        _with(FromRank0On),
        "step 3 of 4.*rows of servers 0, 1, …, not of the ranks",
    ),
    (
        "one for all tables",
        _with(OneForAllTables),
        _BEFORE + "which another RemoteTable has pulled",
    ),
    ("its own rate", _with(server=HalfRate), "step 3 of 4.*change of the table is 2 times"),
    ("waits for all", _with(server=WaitsForAll), "step 4 of 4.*before its own gradient"),
]


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


RIGHT = [
    ("row by row", [RemoteTable, ParameterServer]),
    ("returns one buffer", _with(server=SameBuffer)),
]
AS_MINE = ""
