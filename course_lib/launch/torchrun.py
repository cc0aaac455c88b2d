"""The tool used on real clusters: its command line for a reader, and its private use by a demo."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.launch import group
from course_lib.launch.variables import STEPS_VARIABLE, STORE_VARIABLE, TIMEOUT_VARIABLE

# A launcher's variables: what a rank starts must not take them for its own.
_OF_A_LAUNCHER = (
    "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_",
    STEPS_VARIABLE, STORE_VARIABLE, TIMEOUT_VARIABLE,
)  # fmt: skip


def torchrun_command(module: str, ranks: int, argv: Sequence[str] = ()) -> str:
    """One line for the shell that runs `module` on `ranks` ranks of this machine by torchrun.

    It names this Python instead of `torchrun`, which is found only in an activated environment.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    command = [*launcher, "--standalone", f"--nproc-per-node={ranks}", "-m", module, *argv]
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)


def private_torchrun(folder: Path, ranks: int) -> list[str]:
    """torchrun on this machine alone, up to the module: agent and ranks meet in `folder`.

    With `--standalone` its agent listens on every network interface and unpickles what it is sent
    there (seen with torch 2.13), so that another user could run code as this one. Files in a folder
    of one's own need no port. Start it with `private_environment(folder)`.
    """
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
        f"--rdzv-endpoint={folder}/meeting",
        f"--log-dir={folder}/logs",  # or it leaves an empty one behind
    ]


def private_environment(folder: Path) -> dict[str, str]:
    """The environment for it: nothing of an outer launch, and `launch.init` meets in `folder`."""
    return outer_environment() | {
        STORE_VARIABLE: str(folder / "store"),
        "GLOO_SOCKET_IFNAME": group.loopback() or "",
    }


def outer_environment() -> dict[str, str]:
    """The environment for a torchrun that a rank starts: nothing of the launch of that rank.

    Its ranks meet in a new store after each restart, never among the addresses of dead ones.
    """
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(_OF_A_LAUNCHER)
    }
    return outside | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
