"""What travels between the parent and its ranks: equal, cheap, and explained where it cannot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from leftovers import BUSY_S

from course_lib import launch
from course_lib.launch import job


def there_and_back(value: Any, folder: Path) -> Any:
    job.pack(value, folder / "value")
    return job.unpack(folder / "value")


WHOLE = torch.arange(120_000).view(300, 400)


@pytest.mark.parametrize(
    "tensor",
    [
        WHOLE,
        WHOLE.to(torch.bfloat16),
        WHOLE % 2 == 0,
        WHOLE.to(torch.complex64),
        WHOLE[10:290],
        WHOLE.T,
        WHOLE.float().requires_grad_(),
        torch.nn.Parameter(WHOLE.float()),
        torch.empty(0, 5),
        torch.tensor(3.5),
        WHOLE.to(torch.complex64).conj(),
        torch.imag(WHOLE.to(torch.complex64).conj()),
        torch.eye(300).to_sparse(),
    ],
)
def test_tensors_of_every_kind_come_back_equal(tensor: torch.Tensor, tmp_path: Path) -> None:
    back, again = there_and_back((tensor, tensor), tmp_path)
    assert back is again and back.dtype == tensor.dtype
    assert torch.equal(back.to_dense(), tensor.to_dense())
    assert (type(back), back.requires_grad) == (type(tensor), tensor.requires_grad)
    if not (back.requires_grad or back.is_conj() or back.is_sparse):
        back.reshape(-1)[:1] = 1  # it can be written to


def test_a_part_of_a_tensor_takes_only_its_own_bytes(tmp_path: Path) -> None:
    job.pack(torch.zeros(10_000_000)[:100_000], tmp_path / "value")
    assert (tmp_path / "value").stat().st_size < 410_000


class Unwilling:
    """Can be sent, and cannot be rebuilt where it was not made."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return _only_in, (os.getpid(),)


def _only_in(process: int) -> int:
    if os.getpid() != process:
        raise LookupError("made in another process")
    return process


class Silent(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_it() -> None:
    raise Silent


@pytest.mark.parametrize(
    ("function", "says"),
    [(Unwilling, "returned something that cannot be rebuilt"), (raise_it, "raised .*Silent")],
)
def test_what_cannot_travel_or_speak_is_said_of_its_rank(function: Any, says: str) -> None:
    with pytest.raises(launch.RankFailed, match=f"rank 0 {says}"):
        launch.run(function, ranks=1)


FULL = """
import torch
from course_lib import launch

def say(what, function, *args):
    try:
        print(what, len(launch.run(function, *args, ranks=1, stream=False)))
    except Exception as error:
        print(what, type(error).__name__, str(error).splitlines()[0])

say("argument:", len, torch.zeros(1_000_000))
say("result:", torch.zeros, 1_000_000)
say("small:", torch.zeros, 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a small disk: a namespace with a tmpfs")
def test_a_full_disk_is_said_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FULL)
    (tmp_path / "disk").mkdir()
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = 'mount -t tmpfs -o size=1m none "$TMPDIR" && '
    inside = ["unshare", *user, "--mount", "sh", "-c"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "disk")}
    if (
        not shutil.which("unshare")
        or subprocess.run(
            [*inside, mount + "true"], env=environment, capture_output=True
        ).returncode
    ):
        pytest.skip("this system allows no mount in a namespace")
    command = [*inside, mount + 'exec "$@"', "sh", sys.executable, str(tmp_path / "script.py")]
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=4 * BUSY_S
    )
    argument, result, small = said.stdout.splitlines()
    remedy = "free some, or set the environment variable TMPDIR to a folder with more"
    assert argument.startswith("argument: OSError") and argument.endswith(remedy)
    assert result.startswith("result: RankFailed rank 0 could not write its result, a Tensor")
    assert result.endswith(remedy)
    assert small == "small: 1"


def test_nothing_is_unpickled_from_where_others_can_write() -> None:
    def look() -> tuple[int, int]:
        folder = Path(os.environ["COURSE_STORE"]).parent
        return folder.stat().st_mode & 0o077, folder.stat().st_uid

    assert launch.run(look, ranks=1) == [(0, os.getuid())]


def test_functions_keep_their_file_and_modules_travel_by_name(tmp_path: Path) -> None:
    factor = 3
    function = there_and_back(lambda number: factor * number, tmp_path)
    assert function(4) == 12 and function.__code__.co_filename == __file__
    # torch's `once_differentiable` brings it into a function that a cell defines.
    assert "torch._C._functions" not in sys.modules
    assert there_and_back(torch._C._functions, tmp_path) is torch._C._functions
