"""A rank killed in mid-training: torchrun starts all again, from the last checkpoint.

Recovery, part 2. torchrun's elastic agent ends the other ranks and starts all of them again
(`--max-restarts`); they resume from the last checkpoint (scratch.recovery.checkpoint). Updates
since then are done again; the loss curve is that of one undisturbed process.
Run it with `course demo elastic --ranks 2`: rank 0 starts torchrun with as many ranks.
"""

import contextlib
import itertools
import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib import launch
from course_lib.demos.shared.comparison import check_losses, loss_gaps
from course_lib.demos.shared.options import BatchOptions, option
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.training import one_process
from course_lib.launch.verdict import describe_exit
from course_lib.theory.step.recovery import lost_steps, mean_lost_steps
from course_lib.validation import number, whole

_LEAVE_S = 5.0  # for torchrun to end its ranks


@dataclass(frozen=True)
class Options(BatchOptions):
    """What the demo can be asked for."""

    steps: int = option(10, "optimizer updates")
    every: int = option(4, "updates between checkpoints")
    kill_rank: int = option(1, "the rank that is killed by SIGKILL")
    kill_after: int = option(6, "updates before it is")
    max_restarts: int = option(1, "how often torchrun may start all ranks again")
    limit_s: float = option(90.0, "time limit for torchrun")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("every", self.every)
        whole("kill_rank", self.kill_rank, least=0)
        whole("kill_after", self.kill_after, least=0)
        whole("max_restarts", self.max_restarts, least=0)
        number("limit_s", self.limit_s, above=0)
        if self.kill_after >= self.steps:
            raise ValueError(
                f"kill_after must be below steps {self.steps}, got {self.kill_after}: "
                "nobody trains after the last update"
            )


@dataclass(frozen=True)
class Result:
    """What was trained, lost, and done again."""

    ranks: int
    killed_rank: int
    killed_after: int  # updates
    every: int
    command: str
    attempts: int
    losses: list[float]  # the last attempt's for each update
    losses_one_process: list[float]
    repeated: dict[int, list[float]]  # update: its loss in each attempt
    predicted_repeated: int
    recovery_s: float  # from the last update before the kill to the first one after it

    def verify(self) -> "Result":
        """Return itself; AssertionError where the curve or the repeated updates differ."""
        if len(self.losses) != len(self.losses_one_process):
            raise AssertionError(
                f"{len(self.losses)} updates were done instead of {len(self.losses_one_process)}"
            )
        check_losses("the last attempts", self.losses, self.losses_one_process)
        if len(self.repeated) != self.predicted_repeated:
            raise AssertionError(
                f"{len(self.repeated)} updates were done again, predicted {self.predicted_repeated}"
            )
        return self

    def report(self) -> str:
        """The findings, one a line."""
        gap = max(loss_gaps(self.losses, self.losses_one_process))
        return "\n".join(
            [
                f"started: {self.command}",
                f"rank {self.killed_rank} of {self.ranks} was killed after {self.killed_after} "
                f"updates; all ranks were started again, {self.attempts} attempts",
                f"checkpoint every {self.every} updates: {len(self.repeated)} done again, "
                f"predicted {self.predicted_repeated} (on average "
                f"{mean_lost_steps(self.every):g}); {self.recovery_s:.1f} s until the next update",
                f"loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}, off by {gap:.0e} from one "
                "undisturbed process",
            ]
        )


def main(options: Options) -> Result:
    """Rank 0 starts torchrun with as many ranks as this launch has; all ranks return its result."""
    rank = launch.init()
    if options.kill_rank >= rank.world:
        raise ValueError(
            f"kill_rank must be below the number of ranks {rank.world}, got {options.kill_rank}: "
            "ranks count from 0"
        )
    found = _supervised(options, rank.world) if rank.rank == 0 else None
    return from_rank(0, found).verify()


def _supervised(options: Options, ranks: int) -> Result:
    reference = one_process(options.training(), launch.init().device)
    with tempfile.TemporaryDirectory(prefix="course_elastic_") as path:
        folder = Path(path)
        job = {name: getattr(options, name) for name in ("every", "kill_rank", "kill_after")}
        job["training"] = asdict(options.training())
        (folder / "job.json").write_text(json.dumps(job))
        command = _command(folder, ranks, options.max_restarts)
        _run(command, folder, options.limit_s)
        lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    by_step: dict[int, list[float]] = {}
    for line in lines:
        by_step.setdefault(line["step"], []).append(line["loss"])
    return Result(
        ranks=ranks,
        killed_rank=options.kill_rank,
        killed_after=options.kill_after,
        every=options.every,
        command=shlex.join(command).replace(path, "FOLDER"),
        attempts=1 + max(line["attempt"] for line in lines),
        losses=[by_step[step][-1] for step in sorted(by_step)],
        losses_one_process=reference.losses,
        repeated={step: losses for step, losses in by_step.items() if len(losses) > 1},
        predicted_repeated=lost_steps(options.kill_after, options.every),
        recovery_s=_pause_s(lines),
    )


def _command(folder: Path, ranks: int, max_restarts: int) -> list[str]:
    return [
        *launch.private_torchrun(folder, ranks),
        *(f"--max-restarts={max_restarts}", "--monitor-interval=0.1"),
        *("-m", "course_lib.demos.elastic.worker", str(folder)),
    ]


def _run(command: list[str], folder: Path, limit_s: float) -> None:
    """Run torchrun to its end and leave no process; RuntimeError if it fails."""
    environment = launch.private_environment(folder)
    with open(folder / "output", "w+b") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        with _ended(process):
            try:
                code = process.wait(limit_s)
                problem = f"ended with exit code {code}" if code else ""
            except subprocess.TimeoutExpired:
                problem = f"did not end within {limit_s:g} s"
    if problem:
        words = (folder / "output").read_text(errors="replace").splitlines()
        raise RuntimeError(f"torchrun {problem}: {_cause(words)}\n" + "\n".join(words[-40:]))


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave no agent behind; its ranks see that it has gone, and end as well."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(words: list[str]) -> str:
    """The rank that failed first, from torchrun's table; its last line where there is none.

    A signal comes before an exit code: ranks that lost the killed one end with code 1.
    """
    codes = re.findall(r"rank +: (\d+).*\n +exitcode +: (-?\d+)", "\n".join(words))
    for rank, code in sorted(codes, key=lambda pair: int(pair[1]) >= 0):
        return f"rank {rank} {describe_exit(int(code), started=True)}"
    return words[-1] if words else "it said nothing"


def _pause_s(lines: list[dict[str, Any]]) -> float:
    """The longest time between two updates that different attempts did."""
    pairs = itertools.pairwise(lines)
    pauses = [b["time_s"] - a["time_s"] for a, b in pairs if a["attempt"] != b["attempt"]]
    return max(pauses, default=0.0)
