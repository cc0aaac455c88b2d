"""`init`, `finish` and `program`: the same program alone, in a cell and under torchrun."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from leftovers import BUSY_S, our_ranks, wait_for

from course_lib import launch
from course_lib.launch import group as launched

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from course_lib import launch

def main(fail: str) -> float:
    rank = launch.init()
    if fail and rank.rank == rank.world - 1:
        raise ValueError("the reason")
    total = torch.tensor(float(rank.rank + 1))
    dist.all_reduce(total)
    print(f"rank {rank.rank} of {rank.world} on {rank.backend}: {total.item()}\\n", end="")

if __name__ == "__main__":
    launch.program(main, "".join(sys.argv[1:]))
"""


def test_a_program_alone_and_under_torchrun(tmp_path: Path) -> None:
    """The three run side by side: each imports torch, and torchrun's do so three times."""
    (tmp_path / "small_program.py").write_text(PROGRAM)
    outside = {key: value for key, value in os.environ.items() if key != "RANK"}
    alone, together, broken = (
        subprocess.Popen(
            shlex.split(command), cwd=tmp_path, env=outside, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for command in (
            f"{sys.executable} -m small_program",
            launch.torchrun_command("small_program", 2),
            launch.torchrun_command("small_program", 2, ["raise"]),
        )
    )  # fmt: skip
    assert alone.communicate(timeout=2 * BUSY_S) == ("rank 0 of 1 on gloo: 1.0\n", "")
    said, errors = together.communicate(timeout=2 * BUSY_S)
    assert sorted(filter(None, said.splitlines())) == [
        "rank 0 of 2 on gloo: 3.0", "rank 1 of 2 on gloo: 3.0",
    ], errors  # fmt: skip
    assert "rank 1 raised ValueError: the reason\n" in broken.communicate(timeout=2 * BUSY_S)[1]
    assert [each.returncode for each in (alone, together, broken)] == [0, 0, 1]
    wait_for(lambda: our_ranks() == [])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (ValueError("the reason"), 1, "rank 0 raised ValueError: the reason\n"),
        (SystemExit(7), 7, ""),
        (SystemExit(), 0, ""),
        (SystemExit("a bad option"), 1, "a bad option\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_program_ends_is_its_exit_code(alone, capsys, error, code, said) -> None:
    def main(_: object) -> None:
        if error is not None:
            raise error

    assert launched._exit_code(main, None) == code
    launch.finish()
    shown = capsys.readouterr().err
    assert shown.endswith(said) and bool(shown) == bool(said)


def test_torchrun_command_quotes_its_arguments() -> None:
    command = launch.torchrun_command("course_lib.demos", 4, ["ddp", "--text", "two words"])
    assert shlex.split(command) == [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
        "-m", "course_lib.demos", "ddp", "--text", "two words",
    ]  # fmt: skip


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


def test_a_group_of_another_launcher_is_neither_joined_nor_left(group, monkeypatch):
    for _ in range(2):
        rank = launch.init()
        assert (rank.rank, rank.world, rank.device.type, rank.backend) == (0, 1, "cpu", "gloo")
        launch.finish()
        assert group.is_initialized()
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert launch.init().local_rank == 3
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"has 1 ranks, .* rank 0, .* RANK=1 and WORLD_SIZE=4"):
        launch.init()


def test_when_its_owner_has_ended_it_a_group_of_ones_own_is_joined(group):
    launch.init()
    group.destroy_process_group()
    for _ in range(2):  # a kernel may enter and leave a world of one as often as it likes
        rank = launch.init()
        assert (rank.rank, rank.world, rank.backend) == (0, 1, "gloo")
        launch.finish()
        assert not group.is_initialized()
        launch.finish()
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize(
    ("configuration", "gpus", "found"),
    [
        ("cpu:gloo,cuda:gloo", True, ("cpu", "gloo")),
        ("cpu:gloo,cuda:nccl", True, ("cuda:2", "nccl")),
        ("cpu:gloo,cuda:nccl", False, ("cpu", "gloo")),
        ("cuda:nccl", True, ("cuda:2", "nccl")),
        ("cuda:nccl", False, None),
        ("cpu:mpi,cuda:mpi", True, None),
        ("cpu:fake,cuda:fake", False, None),
    ],
)
def test_the_device_is_the_one_that_the_backend_serves(monkeypatch, configuration, gpus, found):
    cuda = SimpleNamespace(is_available=lambda: gpus, current_device=lambda: 2)
    monkeypatch.setattr(torch, "cuda", cuda)
    if found is None:
        with pytest.raises(RuntimeError, match=f"sends by {configuration}, and .* gloo, or nccl"):
            launched.device_and_backend(configuration)
    else:
        device, backend = launched.device_and_backend(configuration)
        assert (str(device), backend) == found
