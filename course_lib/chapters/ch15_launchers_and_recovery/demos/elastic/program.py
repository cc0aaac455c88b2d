"""A rank killed in mid-training: torchrun starts all again, from the last checkpoint.

Recovery, part 2. torchrun's elastic agent ends the other ranks and starts all of them again
(`--max-restarts`); they resume from the last checkpoint (scratch.recovery). Updates
since then are done again; the loss curve is that of one undisturbed process.
Run it with `course demo elastic --ranks 2`: rank 0 starts torchrun with as many ranks.
With `course demo elastic --two-nodes 200` each of two nodes has an agent, and all processes of
node 1 are killed, its agent too. Node 0's agent starts its ranks again, but training only goes on
when the dead agent has been silent for 15 s (torch 2.13: keep_alive_interval 5 s, three times) and
node 1, `--away-s` later, has a new one.
"""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import lifeline
from course_lib.chapters.ch15_launchers_and_recovery.recovery import lost_steps, mean_lost_steps
from course_lib.demos.shared.comparison import LOSS_TOLERANCE
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Fact, Result, loss_gaps
from course_lib.demos.shared.training import one_process
from course_lib.launch.running import describe_exit
from course_lib.launch.two_nodes import ADDRESSES

_PORT = 29400  # torchrun's default port for the rendezvous
_SIGKILL = 9  # by number: Windows has no name for it


class Killed(RuntimeError):
    """Raised when torchrun itself was killed, as by the loss of its node."""


@dataclass(frozen=True)
class Agent:
    """A torchrun agent of one node: its command, its environment and its output file."""

    command: list[str]
    environment: dict[str, str]
    output: Path

    def run(self, limit_s: float) -> None:
        """Run torchrun to its end and leave no process behind; raises RuntimeError if it fails."""
        with open(self.output, "ab") as file:
            process = subprocess.Popen(self.command, env=self.environment, stdout=file, stderr=file)
            try:
                code: int | None = process.wait(limit_s)
                problem = f"ended with exit code {code}"
            except subprocess.TimeoutExpired:
                code, problem = None, f"did not end within {limit_s:g} s"
            finally:
                lifeline.end(process)  # its ranks notice that it is gone, and exit as well
        if code != 0:
            words = self.output.read_text(errors="replace").splitlines()
            kind = Killed if code == -_SIGKILL else RuntimeError
            raise kind(f"torchrun {problem}: {cause(words)}\n" + "\n".join(words[-40:]))


def alone(folder: Path, ranks: int, program: list[str]) -> Agent:
    """The agent of a single node; `program` is what follows the rendezvous options."""
    command = [*launch.private_torchrun(folder, ranks), *program]
    return Agent(command, launch.private_environment(folder), folder / "output0")


def one_of_two(folder: Path, ranks: int, program: list[str], node: int) -> Agent:
    """The agent of node 0 or 1: they rendezvous over the network, and all ranks are one job.

    Node 0 hosts the rendezvous store, the list of live nodes, and therefore must not be lost.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=2", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{_PORT}"),
        # Both nodes have this machine's hostname, so each is given its role and its address.
        *(f"--rdzv-conf=is_host={int(node == 0)}", f"--local-addr={ADDRESSES[node]}"),
        f"--log-dir={folder}/logs{node}",
        *program,
    ]
    return Agent(command, launch.outer_environment(), folder / f"output{node}")


def cause(words: list[str]) -> str:
    """The root failure from torchrun's table of ranks, or its last line if it has no table.

    A signal takes precedence over an exit code: ranks that lose a killed peer exit with code 1.
    """
    codes = re.findall(r"rank +: (\d+).*\n +exitcode +: (-?\d+)", "\n".join(words))
    for rank, code in sorted(codes, key=lambda pair: int(pair[1]) >= 0):
        return f"rank {rank} {describe_exit(int(code), started=True)}"
    return words[-1] if words else "it said nothing"


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of the demo."""

    steps: int = option(10, "optimizer updates")
    every: int = option(4, "updates between checkpoints", least=1)
    kill_rank: int = option(
        -1, "the rank that is killed, of two nodes with its node; -1: the last", least=-1
    )
    kill_after: int = option(6, "updates before it is", least=0)
    max_restarts: int = option(1, "how often torchrun may start all ranks again", least=0)
    away_s: float = option(
        3.0, "of two nodes: seconds until the lost one is started again", least=0
    )
    limit_s: float = option(90.0, "time limit for torchrun", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kill_after >= self.steps:
            raise ValueError(
                f"kill_after must be below steps {self.steps}, got {self.kill_after}: "
                "nobody trains after the last update"
            )


def main(options: Options) -> Result:
    """Start torchrun from the first rank of each node; all ranks return rank 0's result."""
    rank = launch.init()
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", rank.world))
    node, nodes = rank.rank // ranks_here, rank.world // ranks_here
    killed_rank = _killed_rank(options, rank.world, ranks_here)
    with tempfile.TemporaryDirectory(prefix="course_elastic_") as path:
        if rank.rank == 0:
            job = {"training": asdict(options.training()), "kill_rank": killed_rank}
            job |= {"kill_after": options.kill_after, "every": options.every}
            Path(path, "job.json").write_text(json.dumps(job | {"whole_node": nodes > 1}))
        folder = Path(from_rank(0, path))  # two nodes of one machine see the same files
        program = [f"--max-restarts={options.max_restarts}", "--monitor-interval=0.1"]
        program += ["-m", f"{__package__}.worker", str(folder)]
        agent = alone(folder, ranks_here, program)
        if nodes > 1:
            agent = one_of_two(folder, ranks_here, program, node)
        if rank.local_rank == 0:
            _run(agent, options, may_be_lost=node > 0)
        dist.barrier()  # the agents of both nodes have ended
        result = None
        if rank.rank == 0:
            command = shlex.join(agent.command).replace(path, "FOLDER")
            ours = {"ranks": rank.world, "nodes": nodes, "killed_rank": killed_rank}
            result = _result(options, folder, command=command, **ours)
    return from_rank(0, result)


def _killed_rank(options: Options, ranks: int, ranks_here: int) -> int:
    """The rank to kill; raises ValueError if it does not exist or is on node 0 of two."""
    if options.kill_rank >= ranks:
        raise ValueError(
            f"kill_rank must be below the number of ranks {ranks}, got {options.kill_rank}: "
            "ranks count from 0"
        )
    killed = options.kill_rank % ranks  # -1 is the last
    if ranks_here == ranks:
        return killed
    if os.environ.get("MASTER_ADDR") != ADDRESSES[0]:
        raise ValueError(
            "elastic needs one machine, or two nodes of one: course demo elastic --two-nodes 200"
        )
    if killed < ranks_here:
        raise ValueError(
            f"kill_rank must be at least {ranks_here} on two nodes, got {killed}: node 0 has the "
            "list of nodes that are there, and without it nobody finds the others again"
        )
    return killed


def _run(agent: Agent, options: Options, may_be_lost: bool) -> None:
    """Run torchrun on this node; run it again after `away_s` if the node was killed."""
    try:
        agent.run(options.limit_s)
    except Killed:
        if not may_be_lost:
            raise
        time.sleep(options.away_s)
        agent.run(options.limit_s)


def _result(options: Options, folder: Path, **known: Any) -> Result:
    """Compare the updates that the ranks wrote with one undisturbed process and the theory."""
    lines = [json.loads(line) for line in (folder / "updates.jsonl").read_text().splitlines()]
    by_step: dict[int, list[float]] = {}
    for line in lines:
        by_step.setdefault(line["step"], []).append(line["loss"])
    losses = [by_step[step][-1] for step in sorted(by_step)]
    expected = one_process(options.training(), launch.init().device).losses
    attempts = 1 + max(line["attempt"] for line in lines)
    twice = {step: each for step, each in by_step.items() if len(each) > 1}
    predicted = lost_steps(options.kill_after, options.every)
    recovery_s, gaps = _pause_s(lines), loss_gaps(losses[: len(expected)], expected[: len(losses)])
    event = "rank {killed_rank} of {ranks} was killed after".format(**known)
    event += f" {options.kill_after} updates"
    if known["nodes"] > 1:
        event += ", with all other processes of node 1, which then came back"
    return Result(
        f"started: {known['command']}",
        f"{event}; all ranks were started again, {attempts} attempts",
        f"checkpoint every {options.every} updates: {len(twice)} done again, predicted {predicted} "
        f"(on average {mean_lost_steps(options.every):g}); {recovery_s:.1f} s until the next "
        "update",
        f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, off by {max(gaps):.0e} from one undisturbed "
        "process",
        facts=[
            Fact("updates done", len(losses), len(expected)),
            Fact("the last attempts: the loss", losses, expected, tolerance=LOSS_TOLERANCE),
            Fact("updates done again", len(twice), predicted),
        ],
        **known,
        killed_after=options.kill_after,
        attempts=attempts,
        losses=losses,
        losses_one_process=expected,
        repeated=twice,  # by update: the loss of each attempt
        predicted_repeated=predicted,
        recovery_s=recovery_s,  # from the last update before the kill to the first one after it
    )


def _pause_s(lines: list[dict[str, Any]]) -> float:
    """The longest time in seconds between two successive updates of different attempts."""
    pairs = itertools.pairwise(lines)
    pauses = [b["time_s"] - a["time_s"] for a, b in pairs if a["attempt"] != b["attempt"]]
    return max(pauses, default=0.0)
