"""The same job by hand, by torchrun, accelerate, DeepSpeed and with Megatron-core's layers.

The same losses, or why not. Rank 0 starts each launcher, one after the other; what is not installed
is skipped. `--parts mine` starts the first one by the launcher that you have built. DeepSpeed
compiles a part of itself when it first runs, which takes a minute or two: allow it with
`course demo launchers --ranks 2 --timeout 400 --limit-s 300`.
"""

import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import by_hand, job, lifeline
from course_lib.demos.shared.comparison import LOSS_TOLERANCE
from course_lib.demos.shared.options import option, whose_parts, with_yours
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Fact, Result, loss_gaps
from course_lib.demos.shared.training import one_process

BF16_TOLERANCE = 1e-2  # bf16 has 8 bits: a loss of 4.86 is 4.84 or 4.88 there


@dataclass(frozen=True)
class Launcher:
    """A way to start the job: `command(folder, ranks, gpus)`, then the module and its arguments."""

    name: str
    framework: str
    command: Callable[[Path, int, bool], list[str]]
    package: str | None = None  # package that has to be installed
    compiles: bool = False  # needs a C++ compiler
    takes_parts: bool = False  # its last argument selects the course's or the learner's parts
    tolerance: float = LOSS_TOLERANCE  # of the losses
    one_process_on_cpu: bool = False  # on a CPU starts one process, whatever the number of ranks


def own_launch(_: Path, ranks: int, __: bool) -> list[str]:
    """The hand-written launcher of chapter 15."""
    return [sys.executable, "-m", by_hand.__name__, str(ranks)]


def torchrun(folder: Path, ranks: int, _: bool) -> list[str]:
    """torch's launcher, run by this Python."""
    return [*launch.private_torchrun(folder, ranks), "-m"]


def accelerate_launch(_: Path, ranks: int, gpus: bool) -> list[str]:
    """accelerate's launcher. With --cpu it starts several processes only through MPI."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    several = "--multi_gpu" if gpus and ranks > 1 else "--cpu"
    return [*command, several, "--num_processes", str(ranks), "-m"]


def deepspeed_launch(_: Path, ranks: int, __: bool) -> list[str]:
    """DeepSpeed's launcher. It needs a port, so pick one that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks)]
    return [*command, "--master_port", str(port), "--no_local_rank", "--module"]


LAUNCHERS = (
    Launcher("by hand", "torch", own_launch, takes_parts=True),
    Launcher("torchrun", "torch", torchrun),
    Launcher("torchrun, accelerate inside", "accelerate", torchrun, "accelerate"),
    Launcher(
        "accelerate launch",
        "accelerate",
        accelerate_launch,
        "accelerate",
        one_process_on_cpu=True,
    ),
    Launcher("torchrun, DeepSpeed inside", "deepspeed", torchrun, "deepspeed", compiles=True),
    Launcher(
        "torchrun, DeepSpeed in bf16",
        "deepspeed-bf16",
        torchrun,
        "deepspeed",
        compiles=True,
        tolerance=BF16_TOLERANCE,
    ),
    Launcher("deepspeed", "deepspeed", deepspeed_launch, "deepspeed", compiles=True),
    Launcher("torchrun, Megatron-core inside", "megatron", torchrun, "megatron"),
)


@dataclass(frozen=True)
class Options(job.JobOptions):
    """The options of the demo."""

    only: str = option(
        "all", "one launcher by its name, or all", among=("all", *(one.name for one in LAUNCHERS))
    )
    limit_s: float = option(60.0, "seconds after which a launcher is ended", above=0)
    parts: str = whose_parts("whose launcher is `by hand`")


@dataclass(frozen=True)
class Attempt:
    """The result of one launcher; `problem` says why there are no losses."""

    launcher: str
    command: str
    world: int = 0  # ranks that actually joined the job
    losses: list[float] = field(default_factory=list)
    seconds_to_start: float = 0.0  # from the command to the first update
    seconds: float = 0.0  # from the command to its end
    skipped: bool = False
    problem: str = ""
    tolerance: float = LOSS_TOLERANCE

    def line(self, ranks: int, reference: list[float]) -> str:
        """One line of text: the problem, or the ranks, the times and the error of the losses."""
        if self.problem:
            return f"{'skipped' if self.skipped else 'failed'}: {self.problem}"
        said = f"{self.world} of {ranks} ranks, started in {self.seconds_to_start:.1f} s"
        said += f", ended after {self.seconds:.1f} s, "
        if self.world != ranks:
            return said + (
                f"other losses: {self.world} × the micro-batch is another global batch, and "
                "nothing said so"
            )
        return said + f"losses off by {max(loss_gaps(self.losses, reference)):.0e}"


def main(options: Options) -> Result:
    """Start every launcher from rank 0; all ranks return the same result."""
    rank = launch.init()
    training = options.training(rank.world)
    gpus = rank.device.type == "cuda"
    chosen = [entry for entry in LAUNCHERS if options.only in ("all", entry.name)]
    attempts = None
    if rank.rank == 0:
        attempts = [attempt(launcher, options, rank.world, gpus) for launcher in chosen]
    single_process = [entry.name for entry in chosen if entry.one_process_on_cpu and not gpus]
    one = one_process(training, rank.device).losses
    return judged(rank.world, one, from_rank(0, attempts), single_process)


def judged(
    ranks: int, one: list[float], attempts: Sequence[Attempt], alone: Sequence[str] = ()
) -> Result:
    """Compare ranks and losses of all attempts; launchers in `alone` are known to start 1 rank."""
    facts, lines = [], []
    for each in attempts:
        name = each.launcher
        lines += [f"{name}: {each.line(ranks, one)}", f"    {each.command}"]
        if not each.problem:
            expected = 1 if name in alone else ranks
            facts.append(Fact(f"{name}: ranks started", each.world, expected))
        if not each.problem and each.world == ranks:
            facts.append(Fact(f"{name}: the loss", each.losses, one, tolerance=each.tolerance))
    return Result(*lines, facts=facts, ranks=ranks, losses_one_process=one, attempts=[*attempts])


def attempt(launcher: Launcher, options: Options, ranks: int, gpus: bool) -> Attempt:
    """Start the job with one launcher, and read its result."""
    with tempfile.TemporaryDirectory(prefix="course_launcher_") as path:
        command = launcher.command(Path(path), ranks, gpus)
        command += [options.parts] * launcher.takes_parts
        command += [job.__name__, *_arguments(launcher.framework, options)]
        shown = shlex.join(["python", *command[1:]]).replace(path, "FOLDER")
        outcome = Attempt(launcher.name, shown, tolerance=launcher.tolerance)
        if reason := _missing(launcher):
            return replace(outcome, skipped=True, problem=reason)
        start = time.time()
        code, text = lifeline.run(command, Path(path), options.limit_s)
        outcome = replace(outcome, seconds=time.time() - start)
    if code is None:
        remedy = (launcher.compiles and locks_left(start)) or "raise limit_s"
        return replace(outcome, problem=f"no end within {options.limit_s:g} s: {remedy}")
    result = _result(text)
    if code or result is None:
        last = " | ".join(text.splitlines()[-3:])
        return replace(outcome, problem=f"exit code {code}, last output: {last}")
    return replace(
        outcome,
        launcher=launcher.name + with_yours(options.parts, *launcher.takes_parts * by_hand.NAMES),
        world=result["world"],
        losses=result["losses"],
        seconds_to_start=result["ready_at"] - start,
    )


def _arguments(framework: str, options: Options) -> list[str]:
    """The job's command line arguments, from the options that it shares with this demo."""
    shared = {entry.name: getattr(options, entry.name) for entry in fields(job.JobOptions)}
    arguments = ["--framework", framework]
    for name, value in (shared | {"json": True}).items():
        key = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{key}" if value else f"--no-{key}")
        else:
            arguments += [f"--{key}", str(value)]
    return arguments


def _missing(launcher: Launcher) -> str:
    """The reason why this launcher cannot be started here; empty if it can."""
    if launcher.package and find_spec(launcher.package) is None:
        named = {"megatron": "megatron-core"}.get(launcher.package, launcher.package)
        return f"{named} is not installed: pip install {named}"
    if launcher.compiles and not shutil.which("g++"):
        return f"{launcher.package} compiles a part of itself and g++ is missing: install g++"
    return ""


def locks_left(start: float) -> str:
    """Remove build locks created after `start`; returns the remedy for older ones, or "".

    A process that compiles a torch extension creates a file `lock` in its folder, and all others
    wait until it is gone: forever, if that process was killed.
    """
    from torch.utils.cpp_extension import get_default_build_root

    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    older = []
    for lock in Path(folder).rglob("lock"):
        if lock.stat().st_mtime < start:
            older.append(str(lock))
        else:
            lock.unlink(missing_ok=True)
    if not older:
        return ""
    return f"{', '.join(older)} says that another process compiles; if none does, remove that file"


def _result(text: str) -> dict[str, Any] | None:
    """The job's result, from the last line of its output that has one; None if there is none."""
    for line in reversed(text.splitlines()):
        start = line.find('{"framework"')
        if start >= 0:
            return cast(dict[str, Any], json.JSONDecoder().raw_decode(line[start:])[0])
    return None
