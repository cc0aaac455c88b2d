"""The collectives demo: equal to gloo, counted as predicted, its links as slow as it was told."""

import pytest
from together import runs

from course_lib.demos import collectives as demo
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives

QUICK = {"times": False, "smallest": 64, "largest": 1024}


OF_TWO = {
    "exact": {},
    "timed": {"operations": "ring-all-reduce,all-gather", "times": True, "repeats": 2},
    "one size": {"operations": "ring-all-reduce", "times": True, "smallest": 1024, "repeats": 1},
}


@pytest.fixture(scope="module")
def two():
    return runs("collectives", OF_TWO, **QUICK)


@pytest.fixture(scope="module")
def four():
    """Exact, and behind links so slow that a busy machine adds little: 8 Mbit/s and 20 ms."""
    link = {"link_mbit": 8.0, "link_latency_us": 20_000.0, "times": True}
    sizes = {"smallest": 2**10, "largest": 2**18, "factor": 256, "repeats": 1}
    return runs("collectives", {"exact": {}, "slow": link | sizes}, 4, **QUICK)


def test_every_operation_is_equal_and_counted_as_predicted(two, four):
    three = runs("collectives", {"exact": {}}, 3, **QUICK)
    for ranks, results in ((2, two), (3, three), (4, four)):
        result = results["exact"]  # `main` verifies every row
        assert [row.operation for row in result.rows[::3]] == list(demo.OPERATIONS)
        # 2n-1 numbers do not divide by n: unequal bytes, and in all as many as predicted.
        uneven = result.uneven
        assert uneven.size_bytes == 4 * (2 * ranks - 1)
        assert sum(uneven.sent_bytes) == 2 * (ranks - 1) * uneven.size_bytes
        assert len(set(uneven.sent_bytes)) == (1 if ranks == 2 else 2)
        assert result.fits == [] and result.crossover_bytes is None


def test_alone_nothing_is_sent():
    timed = {"times": True, "repeats": 1}
    result = runs("collectives", {"timed": timed}, ranks=1, **QUICK)["timed"]
    assert all(row.messages == 0 and row.sent_bytes == [0] for row in result.rows)
    assert result.fits == []
    assert "1 ranks" in result.report()


@pytest.fixture
def slow(four):
    return four["slow"]


def test_bus_bandwidth_is_that_of_the_slow_link(slow):
    assert "links slowed down to: 20000 µs a message, 1 MB/s one way" in slow.report()
    for row in slow.rows:
        operation = demo.OPERATIONS[row.operation]
        link = Link("slow", 1e6, 0.02)
        expected = collectives.seconds(
            operation.kind, row.size_bytes, 4, link, algorithm=operation.algorithm
        )
        assert 0.98 * expected < row.seconds < 1.5 * expected + 0.2  # a busy machine only adds
        assert row.library_seconds is None
    ring = slow.of(demo.RING)[-1]
    # 20 ms in each of 6 steps make it 77 % of the link's 1 MB/s.
    assert 0.3 < ring.bus_bytes_per_s(4) / 1e6 < 0.78


def test_the_fit_finds_the_slow_link(slow):
    fit = slow.fits[0].link
    assert [one.name for one in slow.fits] == [demo.RING]
    assert 0.4 < fit.bytes_per_s / 1e6 < 2.5
    assert 0.5 < fit.latency_s / 0.02 < 4
    expected = collectives.crossover_bytes("all-reduce", 4, fit.link, tree="tree", efficiency=1.0)
    assert slow.crossover_bytes == expected
    for ring in slow.of(demo.RING):  # two sizes: the line goes through both
        assert demo.model_seconds(ring, slow.fits, 4) == pytest.approx(ring.seconds)


def test_ring_and_tree_cross_where_the_fit_says(slow):
    # α 2 β / (4 - 1.5) = 16 kB: 1 KiB is faster by the tree, 256 KiB by the ring.
    assert 4_000 < slow.crossover_bytes < 100_000
    small, large = zip(slow.of(demo.RING), slow.of(demo.TREE), strict=True)
    assert small[0].seconds > small[1].seconds
    assert large[0].seconds < large[1].seconds
    assert slow.report().endswith("measured, it was at 1.0 KiB")


def test_without_slow_links_the_library_is_timed_and_fitted_as_well(two):
    result, one_size = two["timed"], two["one size"]
    assert {row.operation for row in result.rows} == {"ring-all-reduce", "all-gather"}
    assert all(row.seconds > 0 and row.library_seconds > 0 for row in result.rows)
    assert len(result.fits) == 2
    assert result.crossover_bytes is None
    assert "fit of the library's all-reduce" in result.report()
    assert one_size.fits[0].link is None  # which does not end the demo
    assert "two different sizes or more" in one_size.fits[0].report()
    assert demo.model_seconds(one_size.rows[0], one_size.fits, 2) is None


def test_sizes_grow_by_the_factor_and_are_whole_for_every_rank():
    options = demo.Options(smallest=10, largest=1000, factor=10)
    assert options.sizes(1) == [12, 100, 1000]
    assert options.sizes(3) == [12, 108, 1008]
    assert demo.Options(smallest=4, largest=16, factor=2).sizes(8) == [32]
    assert demo.Options(smallest=1000, largest=1000).sizes(2) == [1000]
