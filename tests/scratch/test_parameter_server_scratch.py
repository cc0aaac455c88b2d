"""Servers as they come and with a bound, late gradients, and sums of sparse ones."""

import time

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange
from course_lib.measure.wire import log_wire
from course_lib.scratch.parameter_server import (
    BoundedServer,
    Messages,
    RemoteTable,
    descend,
    sum_of_rows,
)
from course_lib.theory.network.collectives import sent_bytes

ROWS, WIDTH, RATE = 11, 3, 0.5
# What each trainer draws, not equally much, some of it twice.
DRAWN = [[[0, 4], [9, 4]], [[4]], [[1, 2], [4, 5], [1, 1]]]


def table():
    return torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)


def of_server(whole, number, servers):
    """The rows of the table that a server has."""
    return whole[number::servers].clone()


def served(servers, updates, pauses_s, bound=None):
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


BOUNDS = (None, 0, 2)


def served_within_each():
    return [served(2, [4, 4, 4], [0.0, 0.0, 0.1], bound) for bound in BOUNDS]


def test_nothing_is_lost_and_nobody_runs_ahead_by_more_than_the_bound():
    for bound, *found in zip(BOUNDS, *launch.run(served_within_each, ranks=5), strict=True):
        for number, (table_of_server, _, updates) in enumerate(found[:2]):
            expected = of_server(after([4, 4, 4]), number, 2)
            assert torch.allclose(table_of_server, expected, atol=1e-4)
            assert updates == 12
        if bound is not None:
            # Server 0 has rows of all. A trainer that pulls in update u finds the others at
            # u - bound or later, and until it pushes they come to u + bound + 1 at most.
            staleness = found[0][1]
            assert max(map(max, staleness.values())) <= 2 * (2 * bound + 1)
            assert (max(staleness[4]) > 2) == (bound > 0)


@pytest.mark.parametrize(("late", "weights"), [(0, [1, 0.5, 0.25]), (2, [1, 0.5, 0, -0.5, -0.75])])
def test_late_gradients_are_those_of_older_weights(late, weights):
    updates = len(weights) - 1
    found = descend(torch.tensor(1.0), lambda w: w, lr=0.5, late=late, updates=updates)
    assert [float(w) for w in found] == weights


# -- sparse gradients ------------------------------------------------------------------------------

IDS = ([3, 3, 49, 7], [7, 0], [3, 1, 2, 0])  # of each rank


def gradient_of(rank):
    torch.manual_seed(0)
    sparse = torch.nn.Embedding(50, 4, sparse=True)
    weights = torch.arange(1.0, len(IDS[rank]) + 1)[:, None]
    (sparse(torch.tensor(IDS[rank])) * weights * (rank + 1)).sum().backward()
    return sparse.weight.grad


def summed():
    with log_wire() as log:
        return sum_of_rows(gradient_of(dist.get_rank())), log.sent()


def test_rows_of_all_ranks_are_added_up():
    expected = sum(gradient_of(rank).to_dense() for rank in range(3))
    for found, sent in launch.run(summed, ranks=3, stream=False):
        torch.testing.assert_close(found.to_dense(), expected)
        assert found.indices()[0].tolist() == [0, 1, 2, 3, 7, 49]
        # Three all-gathers: how many, which rows, their gradients; parts are padded to the longest.
        calls, size = sent["all-gather"]
        longest, counts = max(len(set(ids)) for ids in IDS), sent_bytes("all-gather", 3 * 8, 3)
        gathered = RowExchange(longest, 4).gathered_bytes(3)
        assert (calls, sent_bytes("all-gather", size, 3) - counts) == (3, gathered)
