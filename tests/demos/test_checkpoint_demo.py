"""Save on N ranks, load on M: one process's losses, and as many bytes on disk as predicted."""

import json
import subprocess
import sys
import tempfile
from functools import cache

import pytest
import torch

from course_lib import demos, launch
from course_lib.demos.checkpoint import program as checkpoint
from course_lib.demos.checkpoint import versions as recovery
from course_lib.demos.shared.training import Training, one_process
from course_lib.scratch.recovery.checkpoint import complete


@cache
def run(ranks=2, **options):
    """Loading by torch takes about half a second: nothing is run twice."""
    given = {"model": "1x16x2", "sequence": 8, "steps": 4, "save_after": 2, **options}
    return demos.run("checkpoint", ranks=ranks, stream=False, **given)


@pytest.mark.parametrize(("save", "load", "ranks"), [(2, 4, 4), (4, 2, 4), (4, 3, 4), (1, 2, 2)])
def test_the_loss_curve_is_that_of_one_process(save, load, ranks):
    result = run(ranks, save_ranks=save, load_ranks=load)  # verify() compared it
    assert [version.name for version in result.versions] == [
        "by hand",
        "torch.distributed.checkpoint",
    ]
    for version in result.versions:
        assert version.losses == pytest.approx(result.losses_one_process, rel=1e-6)
        assert version.losses[-1] < version.losses[0]


def test_bytes_are_those_of_the_theory():
    training = Training("1x16x2", sequence=8)
    parameters = training.shape().parameters().total
    by_hand, library = run().versions
    assert by_hand.stored == {"shards": 12 * parameters}
    tensors = len(list(training.build().parameters()))
    tied = 4 * 128 * 16  # the head's weights are the embedding's, saved under both names
    assert library.stored == {"tensors": 12 * parameters + tied + 4 * tensors}


def test_nothing_remains_and_a_named_folder_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    run.__wrapped__(load_ranks=1)
    assert list((tmp_path / "temporary").glob("course_checkpoint_*")) == []
    kept = tmp_path / "kept"
    assert "kept" not in run(folder=str(kept)).report()
    assert [path.name for path in complete(kept / "sharded")] == ["step-00000002"]
    with pytest.raises(launch.RankFailed, match=r"folder .*kept is not empty: name a new one"):
        run.__wrapped__(folder=str(kept))


def forgetful(what):
    """The demo with a load that forgets something."""
    real = recovery.Sharded.load

    def load(self, folder):
        step = real(self, folder)
        state = self.optimizer.state[self.mine]
        if what == "moments":
            state["exp_avg_sq"].zero_().add_(1.0)
        if what == "step":
            state["step"].zero_()
        if what == "weights":
            self.mine.data.add_(0.01 * torch.ones_like(self.mine))
            self._spread()
        return step

    recovery.Sharded.load = load
    checkpoint.KINDS = (recovery.Sharded,)
    options = checkpoint.Options(model="1x16x2", sequence=8, steps=4, save_after=2)
    checkpoint.main(options)


@pytest.mark.parametrize("what", ["moments", "step", "weights"])
def test_whatever_is_forgotten_changes_the_curve(what):
    with pytest.raises(launch.RankFailed, match=r"by hand: the loss of update . differs"):
        launch.run(forgetful, what, stream=False)


@pytest.mark.parametrize(
    "option", [{"seed": 1}, {"batch": 4}, {"model": "1x32x2"}, {"sequence": 16}], ids=str
)
def test_each_option_changes_the_training(option):
    given = {"model": "1x16x2", "sequence": 8}
    one, other = (checkpoint.Options(**{**given, **change}).training() for change in ({}, option))
    assert one_process(one).losses != one_process(other).losses


def test_it_runs_under_torchrun():
    with tempfile.TemporaryDirectory() as logs:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", f"--log-dir={logs}"]
        command += ["-m", "course_lib.demos.checkpoint", "--json", "--model", "1x16x2"]
        command += ["--steps", "4", "--save-after", "2", "--sequence", "8", "--load-ranks", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    under_torchrun = json.loads(done.stdout.splitlines()[-1])
    here = run(load_ranks=1)
    assert under_torchrun["losses_one_process"] == here.losses_one_process


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"save_after": 6}, "save_after must be below steps 6, got 6"),
        ({"save_after": 0}, "save_after must be at least 1"),
        ({"load_ranks": -1}, "load_ranks must be at least 0"),
        ({"model": "2x3"}, "neither one of tiny"),
        ({"json": 1}, "json must be True or False"),
    ],
)
def test_bad_options_are_explained(option, message):
    with pytest.raises(ValueError, match=message):
        checkpoint.Options(**option)


@pytest.mark.parametrize("name", ["save_ranks", "load_ranks"])
def test_more_ranks_than_started_is_explained(name):
    message = f"{name} 3 is more than the 2 ranks started: start 3"
    with pytest.raises(launch.RankFailed, match=message):
        run(**{name: 3})
