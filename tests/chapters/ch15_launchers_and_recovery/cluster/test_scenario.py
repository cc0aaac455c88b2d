"""A node dies while a job trains, in earnest where there is Slurm; and what is said about it."""

import dataclasses
import json
from importlib.resources import files

import pytest

from course_lib.chapters.ch15_launchers_and_recovery import cluster
from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration
from course_lib.chapters.ch15_launchers_and_recovery.cluster.scenario import JOB, batch_script
from course_lib.chapters.ch15_launchers_and_recovery.recovery import lost_steps
from course_lib.problem import Problem

needs_slurm = pytest.mark.engine(*configuration.PROGRAMS)
KINDS = [
    "submitted", "started", "training", "killed", "requeued", "back", "released", "restarted",
    "resumed", "done",
]  # fmt: skip


@needs_slurm
def test_the_job_ends_with_the_losses_of_one_without_a_fault(monkeypatch):
    monkeypatch.setenv("COURSE_HOME", "/tmp/course_nowhere")  # not the learner's own cluster
    told = []
    run = cluster.requeue(steps=8, every=2, kill_after=5, node="n1", tell=told.append)  # verifies
    assert run.events == told
    assert [event.kind for event in run.events] == KINDS
    assert sorted(run.times.values()) == list(run.times.values())
    assert len(run.losses) == 8
    assert run.lost_after >= 5
    assert run.resumed_after % 2 == 0
    assert 0 <= run.repeated <= 3  # 2 at most, and 3 where it died in the middle of a save
    assert run.node == "n1"


@needs_slurm
def test_a_job_that_fails_is_reported_with_its_last_words(tmp_path):
    from course_lib.chapters.ch15_launchers_and_recovery.cluster.scenario import _Job

    options = f"#SBATCH --nodes=2 --output={tmp_path}/job/output"
    script = f"#!/bin/bash\n{options}\necho oh dear\nfalse\n"
    with (
        cluster.running() as slurm,
        _Job.submitted(slurm, tmp_path / "job", script) as job,
        pytest.raises(Problem, match=r"the job is FAILED before .*; its output ends with: oh dear"),
    ):
        job.wait(lambda: False, "a miracle")


def test_the_recorded_run_is_whole():
    run = cluster.recorded()  # verifies
    assert [event.kind for event in run.events] == KINDS
    assert run.repeated == lost_steps(run.lost_after, run.every) == 3
    assert run.report().startswith("Recorded: 22 November 2026, Debian 12, Slurm 22.05.8")
    text = files("course_lib.data").joinpath("requeue.json").read_text("utf-8")
    assert json.loads(text) == dataclasses.asdict(run)


def test_losses_that_differ_in_the_last_bit_are_refused():
    run = cluster.recorded()
    other = [*run.losses[:-1], run.losses[-1] * (1 + 2**-52)]
    with pytest.raises(AssertionError, match="the losses differ"):
        dataclasses.replace(run, losses=other).verify()


def test_the_script_shows_what_a_cluster_needs(tmp_path):
    script = batch_script(tmp_path, steps=7, every=3)
    for words in ("--requeue", "--nnodes=2", f"-m {JOB}", "--steps 7 --every 3", "29400"):
        assert words in script
    assert all(len(line) < 100 for line in script.replace(str(tmp_path), "").splitlines()[1:])
