"""A parameter server in step, and one that serves as they come."""

import time

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.measure.wire import log_wire
from course_lib.scratch.parameter_server import ParameterServer, RemoteTable
from course_lib.theory.network.sparse import RowExchange

ROWS, WIDTH, RATE = 10, 3, 0.5
WANTED = {1: [0, 4, 9], 2: [4], 3: [1, 2, 4, 5]}  # rows that each trainer uses, not equally many


def table():
    return torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)


def gradient(rank, rows):
    """What a trainer finds for its rows; it depends on them."""
    return rank * torch.ones_like(rows) + 0.1 * rows


def in_step(updates):
    rank = launch.init()
    group = dist.new_group(backend="gloo")
    if rank.rank == 0:
        server = ParameterServer(table(), RATE, list(range(1, rank.world)), group)
        with log_wire() as log:
            for _ in range(updates):
                server.serve_together()
        return server.table, server.staleness, log.sent()
    remote, pulled = RemoteTable(WIDTH, 0, group), []
    with log_wire() as log:
        for _ in range(updates):
            rows = remote.pull(torch.tensor(WANTED[rank.rank]))
            remote.push(gradient(rank.rank, rows))
            pulled.append(rows)
    return pulled, None, log.sent()


@pytest.mark.parametrize("ranks", [2, 4])
def test_in_step_all_gradients_are_of_the_same_table(ranks):
    updates = 3
    (served, staleness, sent), *trainers = launch.run(in_step, updates, ranks=ranks)
    alone = table()
    for update in range(updates):
        whole = torch.zeros_like(alone)
        for rank in range(1, ranks):
            ids = WANTED[rank]
            assert torch.equal(trainers[rank - 1][0][update], alone[ids])
            whole[ids] += gradient(rank, alone[ids])
        alone -= RATE * whole
    assert torch.allclose(served, alone)
    assert staleness == [0] * updates * (ranks - 1)
    exchanges = [RowExchange(len(WANTED[rank]), WIDTH) for rank in range(1, ranks)]
    assert sent["send-recv"][1] == updates * sum(one.pulled_bytes for one in exchanges)
    for exchange, (_, _, from_trainer) in zip(exchanges, trainers, strict=True):
        assert from_trainer["send-recv"] == (4 * updates, updates * exchange.pushed_bytes)


def as_they_come(updates, pause_s):
    """Trainer 2 pauses between its pull and its push."""
    rank = launch.init()
    group = dist.new_group(backend="gloo")
    if rank.rank == 0:
        server = ParameterServer(table(), RATE, [1, 2], group)
        server.serve_as_they_come()
        return server.table, server.staleness, server.updates
    remote = RemoteTable(WIDTH, 0, group)
    for _ in range(updates):
        rows = remote.pull(torch.tensor([rank.rank]))
        time.sleep(pause_s if rank.rank == 2 else 0)
        remote.push(torch.ones_like(rows))
    remote.stop()
    return None


def test_as_they_come_nothing_is_lost_and_the_slow_one_is_late():
    (served, staleness, updates), *_ = launch.run(as_they_come, 4, 0.3, ranks=3)
    assert updates == len(staleness) == 8
    assert max(staleness) >= 2  # the fast trainer's updates in the meantime
    expected = table()
    expected[1:3] -= 4 * RATE
    assert torch.equal(served, expected)
