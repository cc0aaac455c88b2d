"""Sparse gradients over ranks: equal to the dense sum, and to gloo's own; bytes as predicted."""

import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange
from course_lib.measure.wire import log_wire
from course_lib.scratch.parameter_server import sum_of_rows
from course_lib.theory.network.collectives import sent_bytes

ROWS, WIDTH = 50, 4
IDS = ([3, 3, 49, 7], [7, 0], [3, 1, 2, 0])  # of each rank


def gradient_of(rank):
    torch.manual_seed(0)
    table = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
    weights = torch.arange(1.0, len(IDS[rank]) + 1)[:, None]
    (table(torch.tensor(IDS[rank])) * weights * (rank + 1)).sum().backward()
    return table.weight.grad


def both_ways():
    gradient = gradient_of(dist.get_rank())
    with log_wire() as log:
        by_hand = sum_of_rows(gradient)
    by_gloo = gradient.coalesce().clone()
    with log_wire() as gloo_log:
        dist.all_reduce(by_gloo)
    torch.testing.assert_close(by_hand.to_dense(), by_gloo.to_dense())
    return by_hand, log.sent(), gloo_log.sent()


def test_rows_of_all_ranks_are_added_up():
    expected = sum(gradient_of(rank).to_dense() for rank in range(3))
    for by_hand, sent, gloo in launch.run(both_ways, ranks=3, stream=False):
        torch.testing.assert_close(by_hand.to_dense(), expected)
        assert by_hand.indices()[0].tolist() == [0, 1, 2, 3, 7, 49]
        # Three all-gathers: how many, which rows, their gradients; parts are padded to the longest.
        calls, size = sent["all-gather"]
        longest = max(len(set(ids)) for ids in IDS)
        counts = sent_bytes("all-gather", 3 * 8, 3)
        assert calls == 3
        assert sent_bytes("all-gather", size, 3) - counts == (
            RowExchange(longest, WIDTH).gathered_bytes(3)
        )
        assert gloo["all-reduce"].calls == 1
        # This rank's rows, or the six of the sum where gloo had finished before the log looked.
        assert gloo["all-reduce"].size_bytes in {k * (8 + 4 * WIDTH) for k in (2, 3, 4, 6)}
