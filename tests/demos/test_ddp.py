"""The DDP demo on real ranks: equal to one process, its all-reduces as predicted."""

import json
import subprocess
import sys

import pytest

from course_lib import demos, launch
from course_lib.demos import ddp


def run(ranks=2, **options):
    return demos.run("ddp", ranks=ranks, stream=False, **{"steps": 4, "model": "2x32x4", **options})


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_to_one_process(ranks):
    result = run(ranks, steps=6)
    assert result.ranks == ranks
    assert result.gradient_difference < ddp.TOLERANCE
    assert result.scratch.gradient_difference < ddp.TOLERANCE
    assert result.losses == pytest.approx(result.losses_one_process, rel=1e-3)
    assert result.scratch.losses == pytest.approx(result.losses_one_process, rel=1e-3)
    assert result.losses[-1] < result.losses[0]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("no_sync", [True, False])
def test_all_reduces_are_as_predicted(accumulation, no_sync):
    result = run(accumulation=accumulation, no_sync=no_sync, micro_batch=2)
    assert result.all_reduces == result.predicted_all_reduces
    assert result.all_reduces == 4 * (1 if no_sync else accumulation)
    assert result.all_reduced_bytes == result.all_reduces * result.gradient_bytes
    assert result.scratch.all_reduces == result.scratch.predicted_all_reduces == result.all_reduces
    assert result.scratch.all_reduced_bytes == result.all_reduced_bytes


@pytest.mark.parametrize(
    ("option", "buckets"),
    [({"bucket_cap_mb": 0.02, "micro_batch": 2}, 5), ({"model": "2x128x4", "steps": 2}, 2)],
    ids=str,
)
def test_several_buckets_are_as_predicted(option, buckets):
    """A cap of one's own holds for the first bucket as well; torch's own first one has 1 MiB."""
    result = run(**option)
    updates = len(result.losses)
    assert len(result.predicted_bucket_bytes) == buckets
    assert result.all_reduces == result.predicted_all_reduces == 1 + (updates - 1) * buckets
    assert result.scratch.all_reduces == result.scratch.predicted_all_reduces == updates * buckets
    for run_ in (result, result.scratch):
        assert run_.all_reduced_bytes == updates * result.gradient_bytes
        assert run_.bucket_bytes == result.predicted_bucket_bytes


def test_without_no_sync_training_is_the_same():
    with_it, without = run(no_sync=True), run(no_sync=False)
    assert with_it.losses == pytest.approx(without.losses, rel=1e-4)


@pytest.mark.parametrize(
    "option",
    [{"seed": 1}, {"learning_rate": 1e-2}, {"model": "1x32x4"}, {"sequence": 32}],
    ids=str,
)
def test_each_option_changes_the_training(option):
    assert run(compare=False).losses != run(compare=False, **option).losses


def profiled_updates():
    """All-reduces of two updates, counted by torch's profiler: gradients, tokens and loss."""
    from course_lib.measure.collectives import profiled_all_reduces

    options = ddp.Options(steps=2, model="2x32x4", compare=False)
    results = []
    count = profiled_all_reduces(lambda: results.append(ddp.main(options)))
    return count, results[0].all_reduces


def test_the_profiler_sees_the_same_all_reduces():
    (profiled, logged), _ = launch.run(profiled_updates, ranks=2)
    per_update = 2  # accumulate_ddp sums the tokens and the loss as well
    # Twice: for DistributedDataParallel, and for the version written out.
    assert profiled == 2 * (logged + 2 * per_update)


def test_torchrun_gives_the_same_result():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "course_lib.demos.ddp", "--json"]
    command += ["--steps", "4", "--model", "2x32x4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    under_torchrun = json.loads(done.stdout.splitlines()[-1])
    here = run()
    assert under_torchrun["losses"] == pytest.approx(here.losses, rel=1e-5)
    assert under_torchrun["all_reduces"] == here.all_reduces


def test_alone_it_is_a_world_of_one():
    command = [sys.executable, "-m", "course_lib.demos.ddp", "--json", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["ranks"] == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"micro_batch": 1.5}, "micro_batch must be a whole number"),
        ({"model": "2x64x5"}, "hidden 64 is not divisible by heads 5"),
        ({"bucket_cap_mb": -1}, "bucket_cap_mb must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite"),
        ({"sequence": 1}, "sequence must be at least 2"),
    ],
)
def test_bad_options_are_explained(option, message):
    with pytest.raises(ValueError, match=message):
        ddp.Options(**option)


def test_a_batch_larger_than_the_text_is_explained():
    with pytest.raises(launch.RankFailed, match="would drop them all"):
        run(micro_batch=200)
