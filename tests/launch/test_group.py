"""`init`, `finish` and `program`: the same program alone, in a cell and under torchrun."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from leftovers import our_ranks, wait_for

from course_lib import launch
from course_lib.launch import group as launched

PROGRAM = """
import sys
from dataclasses import dataclass
import torch
import torch.distributed as dist
from course_lib import launch

@dataclass(frozen=True)
class Options:
    fail: str = ""

def main(options: Options) -> float:
    rank = launch.init()
    if options.fail == "raise" and rank.rank == rank.world - 1:
        raise ValueError("the reason")
    if options.fail == "exit":
        sys.exit(7)
    total = torch.tensor(float(rank.rank + 1))
    dist.all_reduce(total)
    print(f"rank {rank.rank} of {rank.world} on {rank.backend}: {total.item()}\\n", end="")
    return total.item()

if __name__ == "__main__":
    launch.program(main, Options(*sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small_program.py").write_text(PROGRAM)
    return tmp_path


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    outside = {key: value for key, value in os.environ.items() if key != "RANK"}
    ended = subprocess.run(
        shlex.split(command), cwd=folder, env=outside, capture_output=True, text=True, timeout=60
    )
    wait_for(lambda: our_ranks() == [])
    return ended


def test_alone_it_is_a_world_of_one(folder: Path) -> None:
    ended = shell(f"{sys.executable} -m small_program", folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "rank 0 of 1 on gloo: 1.0\n"


@pytest.mark.parametrize(("how", "code", "said"), [("raise", 1, "the reason"), ("exit", 7, "")])
def test_alone_its_failure_is_its_exit_code(folder: Path, how: str, code: int, said: str) -> None:
    ended = shell(f"{sys.executable} -m small_program {how}", folder)
    assert ended.returncode == code
    assert said in ended.stderr


def test_under_torchrun(folder: Path) -> None:
    ended = shell(launch.torchrun_command("small_program", 2), folder)
    assert ended.returncode == 0, ended.stderr
    lines = sorted(line for line in ended.stdout.splitlines() if line)
    assert lines == ["rank 0 of 2 on gloo: 3.0", "rank 1 of 2 on gloo: 3.0"]


def test_under_torchrun_a_failure_ends_all(folder: Path) -> None:
    ended = shell(launch.torchrun_command("small_program", 2, ["raise"]), folder)
    assert ended.returncode == 1
    assert "rank 1 raised ValueError: the reason\n" in ended.stderr


def test_torchrun_command_quotes_its_arguments() -> None:
    command = launch.torchrun_command("course_lib.demos", 4, ["ddp", "--text", "two words"])
    assert shlex.split(command) == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
        "-m", "course_lib.demos", "ddp", "--text", "two words",
    ]  # fmt: skip


def test_init_and_finish_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.delenv("RANK", raising=False)
    for _ in range(2):  # a kernel may enter and leave a world of one as often as it likes
        launch.finish()
        rank = launch.init()
        assert (rank.rank, rank.world, rank.backend) == (0, 1, "gloo")
        launch.finish()
        assert not dist.is_initialized()


def test_importing_the_launcher_is_light() -> None:
    code = "import sys, course_lib.launch; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


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
