"""What an update exchanges, against sums by hand, a queue, a descent and threads that sleep."""

import heapq
from dataclasses import replace

import pytest
import torch
from probes import Given, Probe, by_name
from refused import rows

from course_lib.chapters.ch14_parameter_servers.exchanges import (
    RowExchange,
    ServedTraining,
    Swapping,
    averaged_bytes,
    dense_over_sparse,
    largest_stable_rate,
    late_updates,
    mean_staleness,
    weight_versions,
)
from course_lib.scratch.parameter_server import descend
from course_lib.theory.network.collectives import sent_bytes


def test_an_exchange_by_hand():
    exchange = RowExchange(rows=190, width=128)
    assert exchange.pulled_bytes == 190 * 512
    assert exchange.pushed_bytes == 190 * 512 + 190 * 8 + 16
    assert exchange.total_bytes == 196_096


def test_where_all_rows_are_used_the_all_reduce_sends_less():
    every_row = RowExchange(1000, 16)
    assert dense_over_sparse(every_row, 1000, 2) < 1  # 2(n-1)/n = 1 against 2, and the ids
    assert dense_over_sparse(every_row, 1000, 2) == pytest.approx(64 / (128 + 8), rel=1e-3)


def test_without_a_server_all_ranks_get_all_rows():
    exchange = RowExchange(rows=10, width=4)
    assert exchange.gathered_bytes(ranks=1) == 0
    assert exchange.gathered_bytes(ranks=3) == 2 * 10 * (4 * 4 + 8)
    # From 3 ranks on a server asks less of each of them, headers aside.
    plain = RowExchange(rows=10, width=4, id_bytes=0, header_bytes=0)
    assert plain.gathered_bytes(3) == plain.total_bytes


def test_a_billion_rows_of_which_each_of_8_gpus_touches_100_000():
    exchange, table_bytes = RowExchange(100_000, 64), 10**9 * 64 * 4
    assert table_bytes == 256e9
    assert exchange.total_bytes == pytest.approx(52e6, rel=1e-3)
    assert dense_over_sparse(exchange, 10**9, 8) == pytest.approx(8615, abs=1)


EXCHANGE = {"rows": 100, "width": 64}


# 100,000 rows of 64 numbers, 25 GB/s, 20 ms of computing.
BASE = ServedTraining(RowExchange(100_000, 64), 8, 1, compute_s=0.02, bytes_per_s=25e9)


def test_8_trainers_by_hand():
    assert BASE.exchange.total_bytes == 52_000_016
    assert BASE.alone_s == pytest.approx(0.02 + 52.0e6 / 25e9, rel=1e-6)
    assert BASE.served_bytes == 8 * 52_000_016
    assert BASE.in_step_s == pytest.approx(0.02 + 8 * 2.08e-3, rel=1e-5)
    assert BASE.as_they_come_s == BASE.alone_s  # the link is busy for 8.4 of 22.1 ms
    assert BASE.server_load == pytest.approx(8 * 26.4e6 / 25e9 / 0.02208, rel=1e-4)
    assert BASE.saturating_trainers == pytest.approx(0.02208 / 1.056e-3, rel=1e-4)
    assert BASE.speed_up == 8


def test_servers_help_until_each_trainer_has_one():
    times = [replace(BASE, servers=servers).in_step_s for servers in (1, 2, 4, 8, 16)]
    assert times[:4] == sorted(times[:4], reverse=True) and times[3] == times[4] == BASE.alone_s


def test_the_all_reduced_table():
    beside = BASE.all_reduced_s(10**9) - BASE.compute_s
    assert beside == pytest.approx(2 * 7 / 8 * 256e9 / 25e9)
    # The same trainer's exchange is 8,615 times as fast, and 8 of them share a server's link.
    ratio = dense_over_sparse(BASE.exchange, 10**9, 8)
    assert beside / (BASE.in_step_s - BASE.compute_s) == pytest.approx(ratio / 8)


def simulated(training, updates=200):
    """Seconds for an update of each trainer: every message waits for its turn on the server's link.

    One server; the two directions are queues of their own, first come, first served.
    """
    pull_s = training.exchange.pulled_bytes / training.bytes_per_s
    push_s = training.exchange.pushed_bytes / training.bytes_per_s
    events = [(0.0, trainer, "pull", 0) for trainer in range(training.trainers)]
    free = {"pull": 0.0, "push": 0.0}
    end = 0.0
    while events:
        now, trainer, kind, done = heapq.heappop(events)
        free[kind] = max(now, free[kind]) + (pull_s if kind == "pull" else push_s)
        if kind == "pull":
            event = (free[kind] + training.compute_s, trainer, "push", done)
        elif done + 1 == updates:
            end = max(end, free[kind])
            continue
        else:
            event = (free[kind], trainer, "pull", done + 1)
        heapq.heappush(events, event)
    return end / updates


@pytest.mark.parametrize("trainers", [1, 4, 16, 24, 64])
def test_as_they_come_against_a_queue(trainers):
    training = replace(BASE, trainers=trainers)
    assert simulated(training) == pytest.approx(training.as_they_come_s, rel=0.02)
    assert (training.server_load == 1) == (trainers > training.saturating_trainers)
    assert training.speed_up == pytest.approx(trainers * training.alone_s / training.as_they_come_s)
    assert training.speed_up_in_step <= training.speed_up + 1e-9


def late(trainers, updates, slow=1):
    """Of each gradient the updates since its pull; the last trainer takes `slow` times as long."""
    events = [(slow if t == trainers - 1 else 1, t) for t in range(trainers)]
    heapq.heapify(events)
    pulled, done, found = [0] * trainers, 0, [[] for _ in range(trainers)]
    while done < trainers * updates:
        now, trainer = heapq.heappop(events)
        found[trainer].append(done - pulled[trainer])
        done += 1
        pulled[trainer] = done
        heapq.heappush(events, (now + (slow if trainer == trainers - 1 else 1), trainer))
    return found


@pytest.mark.parametrize("trainers", [1, 2, 5])
def test_mean_staleness_against_a_count(trainers):
    counts = [one for own in late(trainers, 20) for one in own]
    assert sum(counts) / len(counts) == pytest.approx(mean_staleness(trainers, 20))
    assert mean_staleness(trainers, 10**6) == pytest.approx(mean_staleness(trainers))


def test_a_slow_trainer_is_the_latest_and_the_mean_stays():
    by_trainer = late(4, 500, slow=10)
    counts = [one for own in by_trainer for one in own]
    assert sum(counts) / len(counts) == pytest.approx(mean_staleness(4), rel=0.05)
    fast, slow = by_trainer[0], by_trainer[3]
    assert max(fast) <= 3 and min(slow) >= 29


@pytest.mark.parametrize("delay", [0, 1, 2, 7])
def test_the_largest_rate_against_a_descent(delay):
    limit = largest_stable_rate(delay, curvature=3.0)

    def last(rate):
        start = torch.tensor(1.0, dtype=torch.float64)
        weights = descend(start, lambda w: 3 * w, lr=rate, late=delay, updates=2000)
        return max(abs(w) for w in weights[-50:])

    assert last(0.95 * limit) < 1e-3 < 10 < last(1.05 * limit)


def test_bytes_fall_by_the_updates_between_averages():
    assert averaged_bytes(1000, 4, 1) == sent_bytes("all-reduce", 1000, 4) == 1500
    assert averaged_bytes(1000, 4, 10) == 150
    assert averaged_bytes(1000, 1, 10) == 0


def test_published_versions():
    # arXiv:1806.03377: the first of n stages keeps n versions, the last one 1.
    assert [weight_versions("pipedream", 4, stage) for stage in range(4)] == [4, 3, 2, 1]
    # arXiv:2006.09503: two, however deep the pipeline is.
    assert [weight_versions("2bw", 4, stage) for stage in range(4)] == [2] * 4
    assert [weight_versions("flush", 4, stage) for stage in range(4)] == [1] * 4


def test_gradients_are_late_by_the_other_versions():
    assert [late_updates("pipedream", 4, stage) for stage in range(4)] == [3, 2, 1, 0]
    assert late_updates("2bw", 8, 7) == 1
    assert late_updates("flush", 8, 0) == 0


def test_three_layers_by_hand():
    # 0-3 the first is copied; 3-5 it computes, and the second comes until 7; 7-12 the second
    # computes, and the third has come at 8; 12-13.
    run = Swapping((2, 5, 1), (3, 4, 1))
    assert run.exposed_s == [3, 2, 0]
    assert run.overlapped_s == 13
    assert run.serial_s == 16


def test_a_slow_link_decides_and_a_fast_one_is_hidden():
    slow, fast = Swapping([1] * 10, [3] * 10), Swapping([3] * 10, [1] * 10)
    assert slow.serial_s == fast.serial_s == 40
    assert slow.overlapped_s == 31  # all copies, and the last layer
    assert fast.overlapped_s == 31  # one copy, and all layers
    assert sum(fast.exposed_s[1:]) == 0


REFUSED = [
    *rows(
        lambda wrong: RowExchange(**{"rows": 1, "width": 1, **wrong}),
        [
            ({"rows": -1}, "rows must be at least 0"),
            ({"width": 1.5}, "width must be a whole number"),
            ({"id_bytes": -1}, "id_bytes must be at least 0"),
        ],
    ),
    (lambda: dense_over_sparse(RowExchange(100, 16), 99, 2), "table_rows must be at least 100"),
    (lambda: dense_over_sparse(RowExchange(0, 16), 99, 2), "rows must be at least 1"),
    (lambda: replace(BASE, trainers=0), "trainers must be at least 1"),
    (lambda: replace(BASE, servers=0.5), "servers must be a whole number"),
    (lambda: replace(BASE, compute_s=-1), "compute_s must be at least 0"),
    (lambda: replace(BASE, bytes_per_s=0), "bytes_per_s must be above 0"),
    (lambda: replace(BASE, exchange=RowExchange(0, 64)), "rows must be at least 1"),
    (lambda: BASE.all_reduced_s(1000), "table_rows must be at least 100000"),
    (lambda: mean_staleness(0), "trainers must be at least 1"),
    (lambda: mean_staleness(2, 0), "updates must be at least 1"),
    (lambda: largest_stable_rate(-1), "late must be at least 0"),
    (lambda: largest_stable_rate(1, 0), "curvature must be above 0"),
    (lambda: weight_versions("pipedreem", 4, 0), "did you mean 'pipedream'"),
    (lambda: weight_versions("flush", 0, 0), "stages must be at least 1"),
    (lambda: late_updates("flush", 4, 4), "stage must be at most 3"),
    (lambda: late_updates("flush", 4, -1), "stage must be at least 0"),
    (lambda: Swapping([1] * 100_001, [1]), "layers of compute_s 100001 is above 100,000"),
    (lambda: averaged_bytes(1000, 4, 0), "every must be at least 1"),
    *rows(
        Swapping,
        [
            ([], [], "swap_s has 0 layers and compute_s 0"),
            ([1], [1, 2], "swap_s has 2 layers and compute_s 1"),
            ([1], [-1], r"swap_s\[0\] must be at least 0"),
        ],
    ),
]

PROBES = by_name(
    Probe(
        dense_over_sparse,
        {"exchange": RowExchange(**EXCHANGE), "table_rows": 1000, "ranks": 4},
        {"exchange": RowExchange(50, 64)},
    ),
    Probe(
        ServedTraining,
        {
            "exchange": RowExchange(1000, 64),
            "trainers": 8,
            "servers": 2,
            "compute_s": 0.01,
            "bytes_per_s": 1e9,
        },
        {"exchange": RowExchange(2000, 64)},
        see=lambda training: training.in_step_s,
    ),
    Probe(BASE.all_reduced_s, {"table_rows": 10**6}),
    Probe(
        Swapping,
        {"compute_s": (2.0, 5.0, 1.0), "swap_s": (3.0, 4.0, 1.0)},
        {"compute_s": (3.0, 5.0, 1.0), "swap_s": Given((3.0, 6.0, 1.0))},
        see=lambda run: [*run.exposed_s, run.serial_s, run.overlapped_s],
    ),
)
