"""Servers in step, as they come, and with a bound: against one process, byte for byte."""

import time
from statistics import fmean

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange
from course_lib.measure.wire import log_wire
from course_lib.scratch.parameter_server import (
    BoundedServer,
    Messages,
    ParameterServer,
    RemoteTable,
)

ROWS, WIDTH, RATE = 11, 3, 0.5
# What each trainer draws, not equally much, some of it twice.
DRAWN = [[[0, 4], [9, 4]], [[4]], [[1, 2], [4, 5], [1, 1]]]


def table():
    return torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)


def gradient(trainer, rows):
    """What a trainer finds for its rows; it depends on them."""
    return (trainer + 1) * torch.ones_like(rows) + 0.1 * rows


def of_server(whole, number, servers):
    """The rows of the table that a server has."""
    return whole[number::servers].clone()


def in_step(servers, updates):
    rank = launch.init()
    messages = Messages(dist.new_group(backend="gloo"))
    trainers = list(range(servers, rank.world))
    if rank.rank < servers:
        own = of_server(table(), rank.rank, servers)
        server = ParameterServer(own, RATE, trainers, messages)
        with log_wire() as log:
            for _ in range(updates):
                server.serve_together()
        return server.table, server.staleness, log.sent()
    remote, pulled = RemoteTable(WIDTH, range(servers), messages), []
    trainer = rank.rank - servers
    with log_wire() as log:
        for _ in range(updates):
            rows = remote.pull(torch.tensor(DRAWN[trainer]))
            remote.push(gradient(trainer, rows))
            pulled.append(rows)
    return pulled, None, log.sent()


def exchanges_of(trainer, servers):
    """One for each server, by the rows that are drawn at least once."""
    distinct = {row for sample in DRAWN[trainer] for row in sample}
    counts = [sum(row % servers == server for row in distinct) for server in range(servers)]
    return [RowExchange(count, WIDTH) for count in counts]


@pytest.mark.parametrize(("servers", "trainers"), [(1, 3), (3, 3)])
def test_in_step_all_gradients_are_of_the_same_table(servers, trainers):
    updates = 3
    found = launch.run(in_step, servers, updates, ranks=servers + trainers)
    alone = table()
    for update in range(updates):
        whole = torch.zeros_like(alone)
        for trainer in range(trainers):
            ids = torch.tensor(DRAWN[trainer])
            assert torch.equal(found[servers + trainer][0][update], alone[ids])
            whole.index_put_((ids,), gradient(trainer, alone[ids]), accumulate=True)
        alone -= RATE * whole
    exchanges = [exchanges_of(trainer, servers) for trainer in range(trainers)]
    for number, (served, staleness, sent) in enumerate(found[:servers]):
        assert torch.allclose(served, of_server(alone, number, servers))
        ranks = range(servers, servers + trainers)
        assert staleness == {rank: [0] * updates for rank in ranks}
        pulled = sum(one[number].pulled_bytes for one in exchanges)
        asked = sum(one[number].rows > 0 for one in exchanges)
        assert sent["send-recv"] == (asked * updates, pulled * updates)
    for each, (_, _, sent) in zip(exchanges, found[servers:], strict=True):
        calls = sum(4 if one.rows else 2 for one in each)
        pushed = sum(one.pushed_bytes for one in each)
        assert sent["send-recv"] == (calls * updates, pushed * updates)


def as_they_come(servers, updates, pauses_s, bound=None):
    """Trainers that pause between pull and push; `updates` by trainer."""
    rank = launch.init()
    messages = Messages(dist.new_group(backend="gloo"))
    trainers = list(range(servers, rank.world))
    if rank.rank < servers:
        server = BoundedServer(of_server(table(), rank.rank, servers), RATE, trainers, messages)
        if bound is None:
            server.serve_as_they_come()
        else:
            server.serve_within(bound)
        return server.table, server.staleness, server.updates
    remote, trainer = RemoteTable(WIDTH, range(servers), messages), rank.rank - servers
    for _ in range(updates[trainer]):
        rows = remote.pull(torch.tensor(DRAWN[trainer]))
        time.sleep(pauses_s[trainer])
        remote.push(torch.ones_like(rows))
    remote.stop()
    return None


def after(updates):
    """The table when each trainer has pushed ones for all that it drew, so many times."""
    expected = table()
    for drawn, times in zip(DRAWN, updates, strict=False):
        ids = torch.tensor(drawn)
        ones = torch.full((*ids.shape, WIDTH), float(times))
        expected.index_put_((ids,), -RATE * ones, accumulate=True)
    return expected


def test_as_they_come_nothing_is_lost_and_the_slow_one_is_the_latest():
    updates = [8, 8, 2]
    pauses_s = [0.05, 0.05, 0.2]
    found = launch.run(as_they_come, 1, updates, pauses_s, ranks=4)
    served, staleness, count = found[0]
    assert torch.allclose(served, after(updates))
    assert count == sum(updates) == sum(map(len, staleness.values()))
    fast, slow = staleness[1] + staleness[2], staleness[3]
    assert min(slow) > fmean(fast)  # two others, each several times in the meantime


def test_as_they_come_on_several_servers_nothing_is_lost():
    updates = [20, 20, 20]
    found = launch.run(as_they_come, 2, updates, [0.0] * 3, ranks=5)
    for number, (served, _, count) in enumerate(found[:2]):
        assert torch.allclose(served, of_server(after(updates), number, 2), atol=1e-4)
        assert count == 60


@pytest.mark.parametrize("bound", [0, 2])
def test_nobody_runs_ahead_by_more_than_the_bound(bound):
    updates = [4, 4, 4]
    pauses_s = [0.0, 0.0, 0.1]
    found = launch.run(as_they_come, 2, updates, pauses_s, bound, ranks=5)
    for number, (served, _, _) in enumerate(found[:2]):
        assert torch.allclose(served, of_server(after(updates), number, 2), atol=1e-4)
    # Server 0 has rows of all. A trainer that pulls in update u finds the others at u - bound or
    # later, and until it pushes they come to u + bound + 1 at most.
    staleness = found[0][1]
    assert max(map(max, staleness.values())) <= 2 * (2 * bound + 1)
    assert (max(staleness[4]) > 2) == (bound > 0)
