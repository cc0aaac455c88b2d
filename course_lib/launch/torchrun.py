"""The command line that starts the same program with the tool used on real clusters."""

import shlex
import subprocess
import sys
from collections.abc import Sequence


def torchrun_command(module: str, ranks: int, argv: Sequence[str] = ()) -> str:
    """One line for the shell that runs `module` on `ranks` ranks of this machine by torchrun.

    It names this Python instead of `torchrun`, which is found only in an activated environment.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    command = [*launcher, "--standalone", f"--nproc-per-node={ranks}", "-m", module, *argv]
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)
