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
    """The options of the demo."""

    parts: str = whose_parts()
    limit_s: float = option(60.0, "seconds after which a launcher is ended", above=0)


@dataclass(frozen=True)
class Start:
    """The result of one launcher: the ranks that it started, and the trained weights."""

    launcher: str
    command: str
    world: int  # ranks that actually joined the job
    weights: list[float]  # of the last layer
    seconds: float  # from the command to its end


def main(options: Options) -> Result:
    """Start the job from rank 0; all ranks return the same result."""
    rank = launch.init()
    starts = None
    if rank.rank == 0:
        by_hand_name = f"by hand{with_yours(options.parts, *by_hand.NAMES)}"
        starts = [started(name, rank.world, options) for name in (by_hand_name, "torchrun")]
    return judged(rank.world, _one_process(), from_rank(0, starts))


def judged(ranks: int, one: list[float], starts: list[Start]) -> Result:
    """Check that both started all ranks, and trained the same weights as one process."""
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
    """Run the job with one launcher; raises RuntimeError if it fails or takes too long."""
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
    outcome = next(line for line in text.splitlines() if line.startswith('{"world"'))
    return Start(launcher, shown, seconds=seconds, **json.loads(outcome))


def job(parts: str = "course") -> None:
    """Run one rank of the job; rank 0 prints the world size and the trained weights as JSON."""
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
