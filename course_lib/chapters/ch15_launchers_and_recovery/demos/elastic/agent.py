"""torchrun's agent on one node: how it is started, and what it said when it fails."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from course_lib import launch
from course_lib.demos.launchers import lifeline
from course_lib.launch.running import describe_exit
from course_lib.launch.two_nodes import ADDRESSES

_PORT = 29400  # torchrun's own choice for agents that meet
_SIGKILL = 9  # by number: Windows has no name for it


class Killed(RuntimeError):
    """torchrun itself was killed, as by the loss of its node."""


@dataclass(frozen=True)
class Agent:
    """How torchrun is started on one node, and the file for what it says."""

    command: list[str]
    environment: dict[str, str]
    output: Path

    def run(self, limit_s: float) -> None:
        """Run it to its end and leave no process; RuntimeError if it fails."""
        with open(self.output, "ab") as file:
            process = subprocess.Popen(self.command, env=self.environment, stdout=file, stderr=file)
            try:
                code: int | None = process.wait(limit_s)
                problem = f"ended with exit code {code}"
            except subprocess.TimeoutExpired:
                code, problem = None, f"did not end within {limit_s:g} s"
            finally:
                lifeline.end(process)  # its ranks see that it has gone, and end as well
        if code != 0:
            words = self.output.read_text(errors="replace").splitlines()
            kind = Killed if code == -_SIGKILL else RuntimeError
            raise kind(f"torchrun {problem}: {cause(words)}\n" + "\n".join(words[-40:]))


def alone(folder: Path, ranks: int, program: list[str]) -> Agent:
    """The agent of the only node; `program` is what follows where and how they meet."""
    command = [*launch.private_torchrun(folder, ranks), *program]
    return Agent(command, launch.private_environment(folder), folder / "output0")


def one_of_two(folder: Path, ranks: int, program: list[str], node: int) -> Agent:
    """The agent of node 0 or 1: they meet over the network, and all their ranks are one job.

    Node 0 keeps the list of nodes that are there, and therefore must not be lost.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=2", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{_PORT}"),
        # Both nodes have this machine's name, so each is told who it is.
        *(f"--rdzv-conf=is_host={int(node == 0)}", f"--local-addr={ADDRESSES[node]}"),
        f"--log-dir={folder}/logs{node}",
        *program,
    ]
    return Agent(command, launch.outer_environment(), folder / f"output{node}")


def cause(words: list[str]) -> str:
    """The rank that failed first, from torchrun's table; its last line where there is none.

    A signal comes before an exit code: ranks that lost the killed one end with code 1.
    """
    codes = re.findall(r"rank +: (\d+).*\n +exitcode +: (-?\d+)", "\n".join(words))
    for rank, code in sorted(codes, key=lambda pair: int(pair[1]) >= 0):
        return f"rank {rank} {describe_exit(int(code), started=True)}"
    return words[-1] if words else "it said nothing"
