"""A process group that another launcher has made: taken as it is, and left to that launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from course_lib import launch
from course_lib.demos.launchers import job
from course_lib.launch import group as launched

# What another library does: it makes the group, calls the program, and ends the group.
LAUNCHER = """
import json, os, sys
import torch
import torch.distributed as dist
from course_lib import launch
from course_lib.demos.launchers import job

rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
found = launch.init()
losses = job.main(job.Options()).losses
launch.finish()
alive = torch.ones(1)
dist.all_reduce(alive)
dist.destroy_process_group()
place = [found.rank, found.world, found.local_rank, str(found.device), found.backend]
print(json.dumps({"place": place, "losses": losses, "alive": alive.item()}))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(alone):
    """A group of one that is not ours."""
    import torch.distributed as dist

    launch.finish()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_a_demo_in_an_adopted_group_learns_the_same_and_leaves_the_group(alone, tmp_path: Path):
    program = tmp_path / "other_launcher.py"
    program.write_text(LAUNCHER)
    root = Path(group.__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    found = [json.loads(text.splitlines()[-1]) for text in printed]
    assert [rank["place"] for rank in found] == [[r, 2, r, "cpu", "gloo"] for r in range(2)]
    assert [rank["alive"] for rank in found] == [2, 2]
    joined = launch.run(job.main, job.Options(), ranks=2)
    assert found[0]["losses"] == found[1]["losses"] == pytest.approx(joined[0].losses, rel=1e-6)


def test_it_is_neither_joined_nor_left(group):
    for _ in range(2):
        rank = launch.init()
        assert (rank.rank, rank.world, rank.device.type, rank.backend) == (0, 1, "cpu", "gloo")
        launch.finish()
        assert group.is_initialized()


def test_when_its_owner_has_ended_it_a_group_of_ones_own_is_joined(group):
    launch.init()
    group.destroy_process_group()
    assert launch.init().world == 1
    launch.finish()
    assert not group.is_initialized()
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)


def test_an_environment_that_says_otherwise_is_refused(group, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"has 1 ranks, .* rank 0, .* RANK=1 and WORLD_SIZE=4"):
        launch.init()


def test_the_launchers_local_rank_is_taken(group, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert launch.init().local_rank == 3


@pytest.mark.parametrize(
    ("configuration", "gpus", "found"),
    [
        ("cpu:gloo,cuda:gloo", True, ("cpu", "gloo")),
        ("cpu:gloo,cuda:nccl", True, ("cuda:2", "nccl")),
        ("cpu:gloo,cuda:nccl", False, ("cpu", "gloo")),
        ("cuda:nccl", True, ("cuda:2", "nccl")),
    ],
)
def test_the_device_is_the_one_that_the_backend_serves(monkeypatch, configuration, gpus, found):
    cuda = SimpleNamespace(is_available=lambda: gpus, current_device=lambda: 2)
    monkeypatch.setattr(torch, "cuda", cuda)
    device, backend = launched.device_and_backend(configuration)
    assert (str(device), backend) == found


@pytest.mark.parametrize("configuration", ["cuda:nccl", "cpu:mpi,cuda:mpi", "cpu:fake,cuda:fake"])
def test_a_backend_that_serves_no_device_here_is_refused(monkeypatch, configuration):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=f"sends by {configuration}, and .* gloo, or nccl"):
        launched.device_and_backend(configuration)
