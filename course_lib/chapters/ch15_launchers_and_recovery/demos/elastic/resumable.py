"""A training job that may be ended at any moment and started again: it saves, and resumes.

    torchrun … -m course_lib.chapters.ch15_launchers_and_recovery.demos.elastic.resumable FOLDER

Rank 0 writes a line into FOLDER/updates.jsonl for each update, so that others can watch.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.demos.checkpoint import Sharded
from course_lib.demos.shared.ranks import world
from course_lib.demos.shared.training import Training
from course_lib.scratch import recovery


def main(options: argparse.Namespace) -> None:
    """Train a small model, with a pause after each update."""
    training = Training("1x16x2", steps=options.steps, batch=4)
    attempt = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    for _ in train(training, options.folder, options.every, attempt):
        time.sleep(options.pause_s)


def train(training: Training, folder: Path, every: int, attempt: int) -> Iterator[int]:
    """Train from the last checkpoint, or from the beginning if there is none.

    Yields the number of updates done: first that of the checkpoint, then after each update.
    """
    rank = launch.init()
    trainee, saves = Sharded(training, world()), folder / "checkpoints"
    done = trainee.load(saves) if recovery.complete(saves) else 0
    yield done
    for step, batch in enumerate(training.batches(rank.device)[done:], start=done):
        loss = trainee.step(batch)
        if rank.rank == 0:
            line = {"attempt": attempt, "step": step, "loss": loss, "time_s": time.monotonic()}
            with open(folder / "updates.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        if (step + 1) % every == 0:
            trainee.save(saves, step + 1)
        yield step + 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="shared by all nodes")
    parser.add_argument("--steps", type=int, default=24, help="optimizer updates")
    parser.add_argument("--every", type=int, default=5, help="updates between checkpoints")
    parser.add_argument("--pause-s", type=float, default=0.0, help="rest between updates")
    return parser.parse_args()


if __name__ == "__main__":
    launch.program(main, _options())
