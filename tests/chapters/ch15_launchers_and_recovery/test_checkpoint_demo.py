"""Save on N ranks, load on M: one process's losses, and as many bytes on disk as predicted."""

import re

import pytest
import torch
from together import keep_mine, refused, runs

from course_lib import demos, launch
from course_lib.chapters.ch15_launchers_and_recovery.demos import checkpoint
from course_lib.demos.shared.training import Training
from course_lib.scratch.recovery import complete

SMALL = {"model": "1x16x2", "sequence": 8, "steps": 4, "save_after": 2}
# save_ranks, load_ranks: loading by torch takes about half a second, and nothing is run twice.
ON_TWO = [(0, 0), (1, 2)]
ON_FOUR = [(2, 4), (4, 2), (4, 3)]


def saved_and_loaded(pairs, ranks):
    cases = {pair: {"save_ranks": pair[0], "load_ranks": pair[1]} for pair in pairs}
    return runs("checkpoint", cases, ranks, **SMALL)


@pytest.fixture(scope="module")
def two():
    return saved_and_loaded(ON_TWO, 2)


def test_the_loss_curve_is_that_of_one_process(two):
    for result in (*two.values(), *saved_and_loaded(ON_FOUR, 4).values()):
        assert [version.name for version in result.versions] == [
            "by hand",
            "torch.distributed.checkpoint",
        ]
        for version in result.versions:  # compared with one process when it was made
            assert version.losses[-1] < version.losses[0]


def test_bytes_are_those_of_the_theory(two):
    training = Training("1x16x2", sequence=8)
    parameters = training.shape().parameters().total
    by_hand, library = two[0, 0].versions
    assert by_hand.stored == {"shards": 12 * parameters}
    tensors = len(list(training.build().parameters()))
    tied = 4 * 128 * 16  # the head's weights are the embedding's, saved under both names
    assert library.stored == {"tensors": 12 * parameters + tied + 4 * tensors}


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


def test_more_ranks_than_started_is_explained():
    names = ("save_ranks", "load_ranks")
    message = "{} 3 is more than the 2 ranks started: start 3"
    refused("checkpoint", [({name: 3}, message.format(name)) for name in names], **SMALL)


def test_a_learners_checkpoint_is_what_is_saved_and_loaded(tmp_path, monkeypatch):
    keep_mine(tmp_path, monkeypatch, "reshard")
    mine = {"parts": "mine", "save_ranks": 2, "load_ranks": 3}
    result = demos.run("checkpoint", ranks=3, stream=False, **SMALL, **mine)
    assert [version.name for version in result.versions] == [
        "by hand, with your save_shard, load_shard",
        "torch.distributed.checkpoint",
    ]
    forgets = ('return manifest["step"], torch.stack(', "return 0, torch.stack(")
    keep_mine(tmp_path, monkeypatch, "reshard", change=forgets)
    message = r"by hand, with your .*the loss of update . differs"
    with pytest.raises(launch.RankFailed, match=message):
        demos.run("checkpoint", ranks=3, stream=False, **SMALL, **mine)
