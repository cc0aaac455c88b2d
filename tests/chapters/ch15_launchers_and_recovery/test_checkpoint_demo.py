"""Save on N ranks, load on M: one process's losses, and as many bytes on disk as predicted."""

import re

import pytest
import torch
from together import runs

from course_lib import demos, launch
from course_lib.chapters.ch15_launchers_and_recovery.demos import checkpoint
from course_lib.scratch.recovery import complete

SMALL = {"model": "1x16x2", "sequence": 8, "steps": 4, "save_after": 2}


def test_nothing_remains_and_a_named_folder_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    kept = tmp_path / "kept"
    cases = {"removed": {"load_ranks": 1}, "kept": {"folder": str(kept)}}
    results = runs("checkpoint", cases, **SMALL)
    assert list((tmp_path / "temporary").glob("course_checkpoint_*")) == []
    assert "kept" not in results["kept"].report()
    assert [path.name for path in complete(kept / "sharded")] == ["step-00000002"]
    with pytest.raises(launch.RankFailed, match=r"folder .*kept is not empty: name a new one"):
        demos.run("checkpoint", stream=False, folder=str(kept), **SMALL)


def forgetful(kinds):
    """What the demo says of a load that forgets something."""
    real, sentences = checkpoint.Sharded.load, []
    checkpoint.KINDS = (checkpoint.Sharded,)
    for what in kinds:

        def load(self, folder, what=what):
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

        checkpoint.Sharded.load = load
        try:
            checkpoint.main(checkpoint.Options(**SMALL))
        except AssertionError as problem:
            sentences.append(str(problem))
        else:
            sentences.append(f"{what} were not missed")
    return sentences


def test_whatever_is_forgotten_changes_the_curve():
    for sentence in launch.run(forgetful, ["moments", "step", "weights"], stream=False)[0]:
        assert re.match(r"by hand: the loss of update . differs", sentence), sentence
