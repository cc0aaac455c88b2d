"""The DDP demo on real ranks: equal to one process, its all-reduces as predicted."""

import pytest
from together import runs

from course_lib import demos, launch
from course_lib.demos import ddp

BASE = {"steps": 4, "model": "2x32x4"}
SCHEDULES = [(accumulation, no_sync) for accumulation in (1, 3) for no_sync in (True, False)]
BUCKETS = {5: {"bucket_cap_mb": 0.02, "micro_batch": 2}, 2: {"model": "2x128x4", "steps": 3}}


@pytest.fixture(scope="module")
def two():
    cases = {"six": {"steps": 6}, "plain": {}, "without": {"no_sync": False}}
    for accumulation, no_sync in SCHEDULES:
        more = {"accumulation": accumulation, "no_sync": no_sync, "micro_batch": 2}
        cases[accumulation, no_sync] = more
    return runs("ddp", cases | BUCKETS, **BASE)


def test_equal_to_one_process(two):
    four = demos.run("ddp", ranks=4, stream=False, **{**BASE, "steps": 6})
    for ranks, result in ((2, two["six"]), (4, four)):
        assert result.ranks == ranks
        assert result.losses == pytest.approx(result.losses_one_process, rel=1e-3)
        assert result.scratch.losses == pytest.approx(result.losses_one_process, rel=1e-3)
        assert result.losses[-1] < result.losses[0]


def test_all_reduces_are_as_predicted(two):
    for accumulation, no_sync in SCHEDULES:
        result = two[accumulation, no_sync]
        assert result.all_reduces == result.predicted_all_reduces
        assert result.all_reduces == 4 * (1 if no_sync else accumulation)
        assert result.all_reduced_bytes == result.all_reduces * result.gradient_bytes
        scratch = result.scratch
        assert scratch.all_reduces == scratch.predicted_all_reduces == result.all_reduces
        assert scratch.all_reduced_bytes == result.all_reduced_bytes


def test_several_buckets_are_as_predicted(two):
    """A cap of one's own holds for the first bucket as well; torch's own first one has 1 MiB."""
    for buckets in BUCKETS:
        result = two[buckets]
        updates, scratch = len(result.losses), result.scratch
        assert len(result.predicted_bucket_bytes) == buckets
        assert result.all_reduces == result.predicted_all_reduces == 1 + (updates - 1) * buckets
        assert scratch.all_reduces == scratch.predicted_all_reduces == updates * buckets
        for run_ in (result, scratch):
            assert run_.all_reduced_bytes == updates * result.gradient_bytes
            assert run_.bucket_bytes == result.predicted_bucket_bytes


def test_without_no_sync_training_is_the_same(two):
    assert two["plain"].losses == pytest.approx(two["without"].losses, rel=1e-4)


def profiled_updates():
    """All-reduces of three updates, counted by torch's profiler: gradients, tokens and loss."""
    from course_lib.measure.wire import profiled_all_reduces

    options = ddp.Options(steps=3, model="2x32x4", compare=False)
    results = []
    count = profiled_all_reduces(lambda: results.append(ddp.main(options)))
    return count, results[0].all_reduces


def test_the_profiler_sees_the_same_all_reduces():
    (profiled, logged), _ = launch.run(profiled_updates, ranks=2)
    per_update = 2  # accumulate_ddp sums the tokens and the loss as well
    # Twice: for DistributedDataParallel, and for the version written out.
    assert profiled == 2 * (logged + 3 * per_update)
