"""Sharded checkpoints: any number of ranks to any other, nothing damaged; and runs that fail."""

import itertools
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from together import sentence

from course_lib import launch
from course_lib.scratch import recovery
from course_lib.scratch.recovery import MANIFEST, CheckpointError

LAYOUT = {"weight": [5, 7], "bias": [2]}  # 37 columns: no number of ranks divides them
WHOLE = torch.arange(3 * 37, dtype=torch.float32).view(3, 37) / 7


def my_shard(group=None):
    start, stop = recovery.columns(37, dist.get_rank(group), dist.get_world_size(group))
    return WHOLE[:, start:stop]


def saved(folder, steps=(4,), keep=2):
    for step in steps:
        recovery.save_shard(folder, step, my_shard() + step, LAYOUT, keep=keep)


def loaded(path, layout=LAYOUT, reshard=True):
    step, shard = recovery.load_shard(path, layout, reshard=reshard)
    return step, torch.equal(shard, my_shard() + step), shard.shape[1]


@pytest.fixture(scope="module")
def saved_by(tmp_path_factory):
    """The folder of a checkpoint that so many ranks saved; not to be changed."""
    folders = {}

    def folder(ranks):
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"saved_by_{ranks}")
            launch.run(saved, folders[ranks], ranks=ranks)
        return folders[ranks]

    return folder


@pytest.mark.parametrize(("writers", "readers"), [(2, 3), (3, 1)])
def test_any_number_of_ranks_loads_what_any_other_saved(saved_by, writers, readers):
    results = launch.run(loaded, recovery.newest(saved_by(writers)), ranks=readers)
    assert [result[:2] for result in results] == [(4, True)] * readers
    assert sum(width for _, _, width in results) == 37


def test_the_last_two_complete_ones_are_kept(tmp_path):
    incomplete = tmp_path / "step-00000001"
    incomplete.mkdir()
    launch.run(saved, tmp_path, (2, 4, 6, 8))
    kept = [path.name for path in recovery.complete(tmp_path)]
    assert kept == ["step-00000006", "step-00000008"]
    assert incomplete.exists()  # not ours to remove: it has no manifest


def test_a_complete_checkpoint_is_never_overwritten(saved_by):
    newest = recovery.newest(saved_by(2))
    before = {path.name: path.read_bytes() for path in newest.iterdir()}
    with pytest.raises(launch.RankFailed, match="step-00000004 is complete: save into another"):
        launch.run(saved, saved_by(2))
    assert before == {path.name: path.read_bytes() for path in newest.iterdir()}


def killed_while_saving(folder):
    """Rank 1 dies when its shard is written but has not its name yet."""
    saved(folder, (4,))
    if dist.get_rank() == 1:
        os.replace = lambda *_: os._exit(9)
    saved(folder, (8,))


def test_a_rank_that_dies_while_it_saves_leaves_the_last_complete_one(tmp_path):
    with pytest.raises(launch.RankFailed, match="rank 1 ended with exit code 9"):
        launch.run(killed_while_saving, tmp_path)
    assert (tmp_path / "step-00000008").exists()
    assert recovery.newest(tmp_path).name == "step-00000004"
    launch.run(saved, tmp_path, (8,))  # the same step again, over the incomplete one
    assert launch.run(loaded, recovery.newest(tmp_path))[0][:2] == (8, True)


def flip(path):
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def shorten(path):
    path.write_bytes(path.read_bytes()[:-4])


def a_list(path):
    path.write_text("[1]")


DAMAGES = [  # which file, what happens to it, and what the rank that reads it says
    ("rank1.shard", flip, "step-00000004/rank1.shard of rank 1 is corrupt: its checksum"),
    ("rank1.shard", shorten, r"rank1.shard of rank 1 has \d+ bytes instead of \d+"),
    ("rank0.shard", Path.unlink, "step-00000004/rank0.shard of rank 0 is missing"),
    (MANIFEST, Path.unlink, "step-00000004 is incomplete: rank 0 wrote no manifest.json"),
    (MANIFEST, shorten, "step-00000004/manifest.json of rank 0 is corrupt"),
    (MANIFEST, a_list, "step-00000004/manifest.json of rank 0 is corrupt"),
]
OTHERS = [  # another model's layout, and how it differs
    ({"weight": [5, 6], "bias": [2]}, r"weight is \[5, 7\] there and \[5, 6\] here"),
    ({"weight": [5, 7]}, r"bias is \[2\] there and absent here"),
    ({**LAYOUT, "head": [3]}, r"head is absent there and \[3\] here"),
]


def refusals(whole, damaged):
    """Of damaged checkpoints, then of those of another model."""
    loads = [(path, LAYOUT) for path in damaged] + [(whole, layout) for layout, _ in OTHERS]
    return [sentence(loaded, *load) for load in loads]


def test_damage_and_another_model_are_refused_in_one_sentence(saved_by, tmp_path):
    whole, damaged = recovery.newest(saved_by(2)), []
    for number, (file, damage, _) in enumerate(DAMAGES):
        damaged.append(shutil.copytree(whole, tmp_path / str(number) / whole.name))
        damage(damaged[-1] / file)
    expected = [f"{words}.*take an older checkpoint" for _, _, words in DAMAGES]
    expected += [f"of another model: {words}" for _, words in OTHERS]
    ranks = launch.run(refusals, whole, damaged)
    for said, words in zip(zip(*ranks, strict=True), expected, strict=True):
        assert any(re.search(words, one) for one in said), (said, words)
        assert not any("\n" in one for one in said)


def test_without_resharding_another_world_size_is_refused(saved_by):
    newest = recovery.newest(saved_by(2))
    message = "was saved by 2 ranks and is loaded by 3: start 2 ranks or pass reshard=True"
    with pytest.raises(launch.RankFailed, match=message):
        launch.run(loaded, newest, LAYOUT, False, ranks=3)
    assert launch.run(loaded, newest, LAYOUT, False)[0][:2] == (4, True)


def test_a_folder_without_a_complete_checkpoint_is_said_to_be_so(tmp_path):
    with pytest.raises(CheckpointError, match="has no complete checkpoint"):
        recovery.newest(tmp_path)


KINDS = ("work", "save", "lost", "restart")
RUN = {"interval_s": 100.0, "save_s": 5.0, "mtbf_s": 400.0, "restart_s": 30.0}


@pytest.mark.parametrize("seed", range(3))
def test_every_second_of_a_failing_run_is_told_once_and_all_work_is_saved(seed):
    spans = recovery.run(1950.0, **RUN, seed=seed)
    assert spans == recovery.run(1950.0, **RUN, seed=seed)
    assert spans[0].start_s == 0
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(spans))
    seconds = {kind: [s.end_s - s.start_s for s in spans if s.kind == kind] for kind in KINDS}
    assert sum(seconds["work"]) == pytest.approx(1950)
    assert len(seconds["work"]) == len(seconds["save"]) == 20  # the last interval is half as long
    assert 0 < len(seconds["lost"]) <= len(seconds["restart"]) and max(seconds["lost"]) < 105
    assert recovery.wasted(spans) == pytest.approx(spans[-1].end_s / 1950 - 1)
