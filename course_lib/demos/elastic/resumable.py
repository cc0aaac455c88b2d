"""A training job that may be ended at any moment and started again: it saves, and resumes.

    torchrun … -m course_lib.demos.elastic.resumable FOLDER --steps 24 --every 5

Rank 0 writes a line into FOLDER/updates.jsonl for each update, so that others can watch.
"""

import argparse
import json
import os
import time
from pathlib import Path

from course_lib import launch
from course_lib.demos.checkpoint.versions import Sharded
from course_lib.demos.shared.ranks import world
from course_lib.demos.shared.training import Training
from course_lib.scratch.recovery import checkpoint


def main(options: argparse.Namespace) -> None:
    """Train from the last checkpoint on, or from the beginning where there is none."""
    rank = launch.init()
    attempt = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    training = Training("1x16x2", steps=options.steps, batch=4)
    trainee = Sharded(training, world())
    saves = options.folder / "checkpoints"
    done = trainee.load(saves) if checkpoint.complete(saves) else 0
    for step, batch in enumerate(training.batches(rank.device)[done:], start=done):
        loss = trainee.step(batch)
        if rank.rank == 0:
            line = {"attempt": attempt, "step": step, "loss": loss, "time_s": time.time()}
            with open(options.folder / "updates.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        if (step + 1) % options.every == 0:
            trainee.save(saves, step + 1)
        time.sleep(options.pause_s)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="shared by all nodes")
    parser.add_argument("--steps", type=int, default=24, help="optimizer updates")
    parser.add_argument("--every", type=int, default=5, help="updates between checkpoints")
    parser.add_argument("--pause-s", type=float, default=0.0, help="rest after each update")
    return parser.parse_args()


if __name__ == "__main__":
    launch.program(main, _options())
