"""The batch script of a job that survives the loss of a node."""

import contextlib
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from course_lib.chapters.ch15_launchers_and_recovery.cluster.life import running, status
from course_lib.chapters.ch15_launchers_and_recovery.cluster.slurm import Slurm, last_line, steps_in
from course_lib.problem import Problem

JOB = "course_lib.chapters.ch15_launchers_and_recovery.demos.elastic.resumable"


def batch_script(
    folder: Path,
    steps: int = 24,
    every: int = 5,
    pause_s: float = 0.0,
    *,
    python: str = sys.executable,
) -> str:
    """A script for `sbatch`: torchrun on two nodes, and a job that resumes from `folder`.

    The job makes `steps` updates with a checkpoint after every `every`, and sleeps `pause_s` after
    each update, so that it can be watched. `python`: the interpreter's path on both nodes.
    """
    python, where = shlex.quote(python), shlex.quote(str(folder))
    return f"""#!/bin/bash
#SBATCH --job-name=resumable
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={folder}/output

# A lost node ends the job; --requeue puts it back into the queue, and this
# script runs again from its first line. All starts share FOLDER.
FOLDER={where}
START=${{SLURM_RESTART_COUNT:-0}}

# These two nodes share a machine, so they meet in a file, which no stranger
# can reach. Nodes with a network of their own meet on the first of them:
#   HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
#   --rdzv-endpoint=$HEAD:29400
export COURSE_STORE=$FOLDER/store.$START GLOO_SOCKET_IFNAME=lo
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1

srun {python} -m torch.distributed.run \\
    --nnodes=2 --nproc-per-node=1 \\
    --rdzv-id=$SLURM_JOB_ID.$START --rdzv-backend=c10d \\
    --rdzv-conf=store_type=file --rdzv-endpoint=$FOLDER/meeting.$START \\
    --log-dir=$FOLDER/logs \\
    -m {JOB} $FOLDER \\
    --steps {steps} --every {every} --pause-s {pause_s:g}
"""


_LIMIT_S = 180.0  # timeout of each wait; on an idle machine none takes 20 s
_POLL_S = 0.1
# Slurm 22.05 confuses a start with the previous one if it comes within a second of the requeue, or
# while steps of the previous one still run: srun then says that SLURM_JOB_NUM_NODES conflicts with
# one node, or that the nodes are busy, and the job never ends.
_SETTLE_S = 2.0
_LAST_STEPS_S = 20.0  # limited, since steps of other jobs may go on
_ENDED = ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")


@dataclass(frozen=True)
class Event:
    """An event of a job, by kind and in words, `at_s` seconds after the submission."""

    at_s: float
    kind: str  # submitted, started, training, killed, requeued, back, released, …
    words: str

    def __str__(self) -> str:
        return f"{self.at_s:6.1f} s  {self.words}"


@dataclass(frozen=True)
class Requeued:
    """Outcome of a job that lost a node; `losses` has each update's loss in its last attempt."""

    slurm: str  # its version
    node: str
    every: int  # updates between checkpoints
    lost_after: int  # updates done when the node died
    resumed_after: int  # updates in the checkpoint that the second attempt loaded
    events: list[Event]
    losses: list[float]
    losses_undisturbed: list[float]
    recorded: str = ""  # when and where it was recorded; empty for a live run

    @property
    def repeated(self) -> int:
        """Updates that were done twice."""
        return self.lost_after - self.resumed_after

    @property
    def times(self) -> dict[str, float]:
        """Seconds since the submission by kind of event, as `figures.requeue_timeline` takes."""
        return {event.kind: event.at_s for event in self.events}

    def verify(self) -> "Requeued":
        """Return self; raises AssertionError unless both jobs have bitwise equal losses."""
        if self.losses != self.losses_undisturbed:
            raise AssertionError(
                f"the losses differ: {self.losses}, and undisturbed {self.losses_undisturbed}"
            )
        return self

    def report(self) -> str:
        """A line for each event, and the summary."""
        head = [f"Recorded: {self.recorded}"] if self.recorded else []
        return "\n".join([*head, *map(str, self.events), self.summary()])

    def summary(self) -> str:
        """Two lines about the training."""
        return (
            f"a checkpoint every {self.every} updates: {self.repeated} updates were done twice\n"
            f"loss {self.losses[0]:.3f} -> {self.losses[-1]:.3f}: each of the {len(self.losses)} "
            "losses equals that of the job without a fault, to the last bit"
        )


def requeue(
    *,
    steps: int = 24,
    every: int = 5,
    kill_after: int = 13,
    node: str = "n2",
    pause_s: float = 0.2,
    tell: Callable[[Event], object] | None = None,
) -> Requeued:
    """Submit the job, kill `node` after `kill_after` updates, and watch Slurm and the job recover.

    Uses the learner's cluster if it is up, else a temporary one. The job sleeps `pause_s` after
    each update, so that the node dies in time; `tell` is called with each event as it happens.
    Raises Problem if Slurm is not available or the job does not recover.
    """

    def on(slurm: Slurm) -> Requeued:
        with tempfile.TemporaryDirectory(prefix="course_requeue_") as path:
            peaceful, lossy = Path(path, "peaceful"), Path(path, "lossy")
            script = batch_script(peaceful, steps, every)
            with _Job.submitted(slurm, peaceful, script) as job:
                job.wait_for("COMPLETED")
                losses_undisturbed = job.losses()
            script = batch_script(lossy, steps, every, pause_s)
            with _Job.submitted(slurm, lossy, script, tell) as job:
                _lose(job, node, kill_after)
                _recover(job, node)
                attempts = [update["attempt"] for update in job.updates()]
            return Requeued(
                slurm=slurm.version(),
                node=node,
                every=every,
                lost_after=attempts.count(0),
                resumed_after=job.updates()[attempts.index(1)]["step"],
                events=job.events,
                losses=job.losses(),
                losses_undisturbed=losses_undisturbed,
            ).verify()

    if slurm := status():
        return on(slurm)
    with running() as slurm:
        return on(slurm)


def recorded() -> Requeued:
    """Load the recorded result of `requeue`, for machines without Slurm."""
    run = json.loads(files("course_lib.data").joinpath("requeue.json").read_text("utf-8"))
    return Requeued(**run | {"events": [Event(**event) for event in run["events"]]}).verify()


def _lose(job: "_Job", node: str, kill_after: int) -> None:
    """Kill the node after `kill_after` updates; one more may have been under way."""
    job.happened("submitted", "the job is submitted")
    job.wait_for("RUNNING")
    job.happened("started", "Slurm starts it on n1 and n2")
    job.wait(lambda: job.updates(), "a first update")
    job.happened("training", "the first update is done: Python, torch and the other rank are there")
    job.wait(lambda: len(job.updates()) >= kill_after, f"{kill_after} updates")
    job.slurm.kill_node(node)
    done = len(job.updates())
    job.happened("killed", f"{node} loses its power after {done} updates")


def _recover(job: "_Job", node: str) -> None:
    """Restart the node as soon as Slurm marks it as down, and wait for the job's end."""
    job.wait_for("PENDING")
    wait_s = job.seconds_until_start()
    job.happened(
        "requeued", f"Slurm gives {node} up and queues the job again, to start in {wait_s:.0f} s"
    )
    job.slurm.start_nodes()
    job.wait(job.slurm.ready, f"{node} again")
    job.happened("back", f"{node} is repaired and reports for work")
    _settle(job.slurm)
    job.slurm.run(["scontrol", "update", f"jobid={job.number}", "StartTime=now"])
    job.happened("released", f"scontrol update jobid={job.number} StartTime=now: no need to wait")
    job.wait_for("RUNNING")
    job.happened("restarted", "Slurm starts the script again from its first line")
    job.wait(lambda: job.updates()[-1]["attempt"], "an update of the second attempt")
    first = next(update["step"] for update in job.updates() if update["attempt"])
    job.happened("resumed", f"training resumes after update {first}, the last one saved")
    job.wait_for("COMPLETED")
    job.happened("done", "the job is done")


def _settle(slurm: Slurm) -> None:
    """Wait until the surviving node has ended its job steps."""
    until_s = time.monotonic() + _LAST_STEPS_S
    while steps_in(slurm.folder) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    time.sleep(_SETTLE_S)


@dataclass(frozen=True)
class _Job:
    """A submitted job, its folder, and its events so far."""

    slurm: Slurm
    folder: Path
    number: int
    submitted_s: float
    tell: Callable[[Event], object] | None
    events: list[Event] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def submitted(
        cls,
        slurm: Slurm,
        folder: Path,
        script: str,
        tell: Callable[[Event], object] | None = None,
    ) -> "Iterator[_Job]":
        """Submit the job for the length of the block, and cancel it at the end."""
        folder.mkdir()
        (folder / "job.sh").write_text(script)
        submitted_s = time.time()
        said = slurm.run(["sbatch", "--parsable", str(folder / "job.sh")])
        if said.returncode:
            raise Problem(f"Slurm refuses the job: {said.stderr.strip()}")
        job = cls(slurm, folder, int(said.stdout.split(";")[0]), submitted_s, tell)
        try:
            yield job
        finally:
            slurm.run(["scancel", str(job.number)])  # no effect on a job that has ended

    def happened(self, kind: str, words: str) -> None:
        """Record an event with the current time."""
        event = Event(round(time.time() - self.submitted_s, 2), kind, words)
        self.events.append(event)
        if self.tell:
            self.tell(event)

    def updates(self) -> list[dict[str, Any]]:
        """The records of updates.jsonl so far: attempt, step, loss and time_s of each update."""
        path = self.folder / "updates.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def losses(self) -> list[float]:
        """The loss of each update, from its last attempt."""
        return list({update["step"]: update["loss"] for update in self.updates()}.values())

    def fields(self) -> dict[str, str]:
        """The fields that `scontrol show job` prints, by name."""
        said = self.slurm.run(["scontrol", "show", "job", str(self.number)]).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def seconds_until_start(self) -> float:
        """Seconds until the StartTime that Slurm plans for the job."""
        at = datetime.fromisoformat(self.fields()["StartTime"])
        return (at - datetime.now()).total_seconds()

    def wait_for(self, state: str) -> None:
        """Wait until the job has this Slurm state. Raises the Problems of `wait`."""
        self.wait(lambda: self.fields().get("JobState") == state, f"the state {state}")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition()` holds. Raises Problem if the job ends first, or after 3 min."""
        until_s = time.monotonic() + _LIMIT_S
        while not condition():
            state = self.fields().get("JobState", "unknown to Slurm")
            if state in _ENDED or time.monotonic() > until_s:
                said = last_line(self.folder / "output", "nothing")
                raise Problem(f"the job is {state} before {what}; its output ends with: {said}")
            time.sleep(_POLL_S)
