"""The demos of parameter servers and of local SGD: equal to one process, or fewer bytes."""

from statistics import fmean

import pytest
from together import runs

from course_lib.chapters.ch14_parameter_servers.exchanges import mean_staleness
from course_lib.demos.shared.comparison import loss_gaps
from course_lib.theory.network.collectives import sent_bytes

TABLE_BYTES = 512 * 128 * 4
SMALL = {"model": "512x2", "steps": 4, "sequence": 16}


@pytest.fixture(scope="module")
def two():
    cases = {"equal": {}, "small": {"model": "4096x2"}, "large": {"model": "8192x2"}}
    return runs("parameter_server", cases, **SMALL)


@pytest.fixture(scope="module")
def four():
    late = {"steps": 12, "pause_ms": 25.0}
    cases = {"one": {}, "two": {"servers": 2}, "late": late, "slow": late | {"slow": 4}}
    return runs("parameter_server", cases, 4, **SMALL, batch=5)


def test_equal_to_one_process(two, four):
    results = [(2, 1, two["equal"]), (4, 1, four["one"]), (4, 2, four["two"])]
    for ranks, servers, result in results:
        for version in result.versions:  # compared with its prediction when it was made
            assert version.predicted_sent and version.predicted_stored
            assert version.gradient_difference is not None
        sent = sent_bytes("all-reduce", TABLE_BYTES, ranks)
        assert result.all_reduced_bytes == pytest.approx(sent)
        assert len(result.exchanged_bytes) == len(result.staleness) == ranks - servers
        assert len(result.served_bytes) == servers
        assert sum(result.exchanged_bytes) == sum(result.served_bytes)
        assert [*map(len, result.staleness)] == [4] * (ranks - servers)
        assert result.asynchronous_loss < result.losses_one_process[0]
        assert "times as much" in result.report()


def test_each_server_has_its_part_of_the_table_and_of_the_bytes(four):
    one, two = four["one"], four["two"]
    assert one.versions[0].stored == {"rows": TABLE_BYTES}
    assert two.versions[0].stored == {"rows": TABLE_BYTES // 2}
    assert max(two.served_bytes) < 0.6 * sum(two.served_bytes)


def test_on_average_a_gradient_is_as_late_as_there_are_others(four):
    late = [updates for own in four["late"].staleness for updates in own]
    assert len(late) == 3 * 12
    assert 0.5 < fmean(late) <= mean_staleness(3) + 0.1
    assert "in a long run 2\n" in four["late"].report()


def test_the_slow_trainers_gradients_are_the_latest(four):
    fast, other, slow = four["slow"].staleness
    assert (len(fast), len(other), len(slow)) == (12, 12, 3)
    assert fmean(slow) > fmean(fast + other)


def test_a_larger_table_costs_the_server_nothing(two):
    small, large = two["small"], two["large"]
    assert large.all_reduced_bytes == 2 * small.all_reduced_bytes
    assert large.exchanged_bytes[0] < 1.1 * small.exchanged_bytes[0]


SHORT = {"model": "1x16x2", "steps": 6, "sequence": 8}


@pytest.fixture(scope="module")
def results():
    cases = {every: {"every": every, "batch": 7} for every in (1, 2, 3)}
    found = {ranks: runs("local_sgd", cases, ranks, **SHORT) for ranks in (2, 3)}
    return found | {1: runs("local_sgd", {3: cases[3]}, 1, **SHORT)}


def test_fewer_averages_are_another_algorithm_with_fewer_bytes(results):
    for ranks in (2, 3):
        each = results[ranks][1].versions[0].sent["all-reduce"].size_bytes
        for every in (2, 3):
            result = results[ranks][every]
            assert result.sent == (6 // every, 6 // every * each)
            assert max(loss_gaps(result.losses, result.losses_one_process)) > 1e-4
    assert "a rank sends" in results[2][2].report()
    assert results[1][3].sent == (0, 0)
