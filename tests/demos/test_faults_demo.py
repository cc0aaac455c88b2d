"""Each kind of fault ends in its sentence, and no fault in a sum."""

from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from course_lib import demos, launch
from course_lib.demos.faults import kinds
from course_lib.demos.faults.kinds import Update

SENTENCES = {
    "kill": "rank 1 was killed by SIGKILL",
    "hang": "rank [01] hung: it gave no result within 2 s",
    "memory": "rank 1 ran out of memory when it asked for 4,000,000.0 GB in one tensor",
    "collective": "rank [01] called (broadcast|all_reduce) of .* while rank [01] called",
    "shape": r"rank [01] called all_reduce of \[4(000)?\] float while rank [01] called",
    "unused": "rank [01] had no gradient for forgotten.bias, forgotten.weight",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_each_fault_ends_in_one_sentence(kind, monkeypatch):
    if kind in ("collective", "shape"):
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    limit_s = 2 if kind == "hang" else 60
    with pytest.raises(launch.RankFailed, match=SENTENCES[kind]):
        demos.run("faults", ranks=2, timeout_s=limit_s, stream=False, kind=kind)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is no folder here")
def test_a_small_shared_memory_leaves_no_file(monkeypatch):
    workers = []
    monkeypatch.setattr(
        kinds, "active_children", lambda: workers.extend(active_children()) or workers
    )
    with pytest.raises(RuntimeError, match="unable to"):
        kinds.shm(Update(0, 1, torch.ones(4)))
    (worker,) = workers
    assert list(Path("/dev/shm").glob(f"torch_{worker.pid}_*")) == []


def test_without_a_fault_all_is_well():
    result = demos.run("faults", ranks=3, stream=False)
    assert (result.ranks, result.total) == (3, 3)
    assert "no rank failed: 3 ranks" in result.report()


def test_another_rank_can_be_broken_if_it_exists():
    for rank, said in ((0, "rank 0 was killed"), (2, "rank must be below .* ranks 2, got 2")):
        with pytest.raises(launch.RankFailed, match=said):
            demos.run("faults", ranks=2, stream=False, kind="kill", rank=rank)
