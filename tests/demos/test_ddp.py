"""The DDP demo on real ranks: equal to one process, its all-reduces as predicted."""

import pytest
from together import keep, refused, runs

from course_lib import demos, launch, mine
from course_lib.demos import ddp

BASE = {"steps": 4, "model": "2x32x4"}
SCHEDULES = [(accumulation, no_sync) for accumulation in (1, 3) for no_sync in (True, False)]
BUCKETS = {5: {"bucket_cap_mb": 0.02, "micro_batch": 2}, 2: {"model": "2x128x4", "steps": 3}}
CHANGES = [{"seed": 1}, {"learning_rate": 1e-2}, {"model": "1x32x4"}, {"sequence": 32}]


@pytest.fixture(scope="module")
def two():
    cases = {"six": {"steps": 6}, "plain": {}, "without": {"no_sync": False}}
    for accumulation, no_sync in SCHEDULES:
        more = {"accumulation": accumulation, "no_sync": no_sync, "micro_batch": 2}
        cases[accumulation, no_sync] = more
    cases |= BUCKETS
    cases |= {str(change): {"compare": False, **change} for change in CHANGES}
    return runs("ddp", cases, **BASE)


def test_equal_to_one_process(two):
    four = demos.run("ddp", ranks=4, stream=False, **{**BASE, "steps": 6})
    for ranks, result in ((2, two["six"]), (4, four)):
        assert result.ranks == ranks
        assert result.gradient_difference < ddp.TOLERANCE
        assert result.scratch.gradient_difference < ddp.TOLERANCE
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


def test_each_option_changes_the_training(two):
    for change in CHANGES:
        assert two["plain"].losses != two[str(change)].losses, change


@pytest.mark.parametrize(("factor", "right"), [(1, True), (2, False)])
def test_the_learners_own_accumulation_runs(tmp_path, monkeypatch, factor, right):
    """Theirs leaves a trace; and where it is wrong, the demo says so."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    kept = mine.file_of(mine.BY_NAME["accumulate_ddp"])
    kept.parent.mkdir()
    kept.write_text(
        "from pathlib import Path\n"
        "from course_lib.scratch import accumulation\n"
        "def accumulate_ddp(model, window, no_sync=True):\n"
        f"    Path({str(tmp_path / 'trace')!r}).touch()\n"
        "    loss = accumulation.accumulate_ddp(model, window, no_sync)\n"
        f"    for p in model.parameters(): p.grad *= {factor}\n"
        "    return loss\n"
    )
    options = {**BASE, "steps": 3, "stream": False}
    assert "your accumulate_ddp" not in demos.run("ddp", ranks=2, **options).report()
    assert not (tmp_path / "trace").exists()
    if right:
        report = demos.run("ddp", ranks=2, parts="mine", **options).report()
        assert ", with your accumulate_ddp" in report
        assert (tmp_path / "trace").exists()
    else:
        with pytest.raises(launch.RankFailed, match="the gradient differs"):
            demos.run("ddp", ranks=2, parts="mine", **options)


def profiled_updates():
    """All-reduces of three updates, counted by torch's profiler: gradients, tokens and loss."""
    from course_lib.measure.collectives import profiled_all_reduces

    options = ddp.Options(steps=3, model="2x32x4", compare=False)
    results = []
    count = profiled_all_reduces(lambda: results.append(ddp.main(options)))
    return count, results[0].all_reduces


def test_the_profiler_sees_the_same_all_reduces():
    (profiled, logged), _ = launch.run(profiled_updates, ranks=2)
    per_update = 2  # accumulate_ddp sums the tokens and the loss as well
    # Twice: for DistributedDataParallel, and for the version written out.
    assert profiled == 2 * (logged + 3 * per_update)


KEPT_RING = """from course_lib.scratch.collectives import ring

def ring_reduce_scatter(whole, peers):
    return {} * ring.ring_reduce_scatter(whole, peers)

def ring_all_gather(shard, peers, rows=None):
    return ring.ring_all_gather(shard, peers, rows)
"""
KEPT_DDP = """from course_lib.scratch.replicas.buckets import Bucket
from course_lib.scratch.replicas.ddp import DDP as Course

class DDP(Course):
    def no_sync(self):
        {}
"""


def test_the_learners_ddp_and_ring_are_what_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    yours = {"": {"parts": "mine", "bucket_cap_mb": 0.02}}
    keep(tmp_path, "ddp", KEPT_DDP.format("return super().no_sync()"))
    assert "the same with DDP by hand, with your DDP:" in runs("ddp", yours, **BASE)[""].report()
    keep(tmp_path, "ring", KEPT_RING.format(1))
    result = runs("ddp", yours, **BASE)[""]
    name = "DDP by hand, with your DDP, ring_reduce_scatter, ring_all_gather"
    assert result.scratch_name == name
    assert result.scratch.bucket_bytes == result.predicted_bucket_bytes
    assert result.scratch.all_reduces == result.scratch.predicted_all_reduces
    keep(tmp_path, "ring", KEPT_RING.format(2))
    refused("ddp", [({"parts": "mine"}, f"{name}: the gradient differs")], **BASE)
    keep(tmp_path, "ddp", KEPT_DDP.format("raise ValueError('mine')"))
    refused("ddp", [({"parts": "mine"}, "^mine$"), ({}, "accepted")], **BASE)


def test_a_batch_larger_than_the_text_is_explained():
    with pytest.raises(launch.RankFailed, match="would drop them all"):
        demos.run("ddp", stream=False, micro_batch=200, **BASE)
