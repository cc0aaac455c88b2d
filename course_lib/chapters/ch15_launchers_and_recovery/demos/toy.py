"""The smallest job for a launcher: a model on two devices in DDP, by hand and by torchrun.

Rank 0 starts `job` of this file twice, on as many ranks as this demo has: by the launcher of
chapter 15 and by torchrun. Both learn what one process does.
Run it with `course demo toy --ranks 2`, or `--parts mine` once the launcher is built.
"""

import json
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from course_lib import launch, mine
from course_lib.chapters.ch15_launchers_and_recovery.demos.launchers import by_hand, lifeline
from course_lib.demos.shared.comparison import GRADIENT_TOLERANCE
from course_lib.demos.shared.options import DemoOptions, option, whose_parts, with_yours
from course_lib.demos.shared.ranks import from_rank
from course_lib.demos.shared.result import Fact, Result
from course_lib.measure.gradients import relative_difference
from course_lib.scratch import launcher
from course_lib.scratch.launcher import demo_model_parallel

JOB = "course_lib.chapters.ch15_launchers_and_recovery.demos.toy"


@dataclass(frozen=True)
class Options(DemoOptions):
    """What the demo can be asked for."""

    parts: str = whose_parts()
    limit_s: float = option(60.0, "seconds after which a launcher is ended", above=0)


@dataclass(frozen=True)
class Start:
    """What one launcher's ranks learned."""

    launcher: str
    command: str
    world: int  # ranks that the job found
    weights: list[float]  # of the last layer
    seconds: float  # from the command to its end


def main(options: Options) -> Result:
    """Start the job from rank 0; all ranks return what it found."""
    rank = launch.init()
    found = None
    if rank.rank == 0:
        own = f"by hand{with_yours(options.parts, *by_hand.NAMES)}"
        found = [started(name, rank.world, options) for name in (own, "torchrun")]
    return judged(rank.world, _one_process(), from_rank(0, found))


def judged(ranks: int, one: list[float], starts: list[Start]) -> Result:
    """Both must have started all ranks, and learned what one process without DDP learns."""
    lines: list[str] = []
    facts: list[Fact] = []
    for start in starts:
        off = relative_difference(torch.tensor(start.weights), torch.tensor(one))
        last = f"{start.launcher}: the last layer"
        facts.append(Fact(f"{start.launcher}: ranks started", start.world, ranks))
        facts.append(Fact(last, off, tolerance=GRADIENT_TOLERANCE))
        lines += [
            f"{start.launcher}: {start.world} of {ranks} ranks, {start.seconds:.1f} s; the last "
            f"layer is off by {off:.0e} from one process",
            f"    {start.command}",
        ]
    return Result(*lines, facts=facts, starts=starts)


def _one_process() -> list[float]:
    model = launcher.toy_model("cpu", "cpu")
    launcher.train(model, slice(None))
    return model.net2.weight.flatten().tolist()


def started(launcher: str, ranks: int, options: Options) -> Start:
    """Start the job by one of the two; RuntimeError where it fails or is too slow."""
    with tempfile.TemporaryDirectory(prefix="course_toy_") as path:
        if launcher == "torchrun":
            command = [*launch.private_torchrun(Path(path), ranks), "-m", JOB, options.parts]
        else:
            parts = options.parts
            command = [sys.executable, "-m", by_hand.__name__, str(ranks), parts, JOB, parts]
        start_s = time.monotonic()
        code, text = lifeline.run(command, Path(path), options.limit_s)
        seconds = time.monotonic() - start_s
        shown = shlex.join(["python", *command[1:]]).replace(path, "FOLDER")
    if code is None:
        raise RuntimeError(f"{launcher}: no end within {options.limit_s:g} s: raise limit_s")
    if code:
        raise RuntimeError(f"{launcher}: exit code {code}\n{text}")
    learned = next(line for line in text.splitlines() if line.startswith('{"world"'))
    return Start(launcher, shown, seconds=seconds, **json.loads(learned))


def job(parts: str = "course") -> None:
    """Run one rank, from its first line to its last; rank 0 prints what was learned."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    mine.get("setup", parts)(rank, world_size)
    weights = demo_model_parallel(rank, world_size, local_rank)
    mine.get("cleanup", parts)()
    if rank == 0:
        print(json.dumps({"world": world_size, "weights": weights.flatten().tolist()}))


if __name__ == "__main__":
    lifeline.hold()
    job(*sys.argv[1:])
