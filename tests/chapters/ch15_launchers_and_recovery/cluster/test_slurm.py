"""A Slurm of two nodes on this machine: it comes up, answers, and leaves nothing."""

import pytest

from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration

pytestmark = pytest.mark.engine(*configuration.PROGRAMS)


@pytest.fixture
def script(tmp_path):
    def write(*options):
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "srun hostname"]
        path = tmp_path / "job.sh"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def test_a_job_runs_on_both_nodes(slurm):
    command = ["srun", "--nodes=2", "printenv", "SLURMD_NODENAME"]
    assert sorted(slurm.run(command).stdout.split()) == ["n1", "n2"]


def test_jobs_are_listed_by_number_and_name(slurm):
    for options in (["--job-name=a|b c"], ["--job-name=several", "--array=1-3"]):
        slurm.run(["sbatch", "--hold", *options, "--wrap", "true"])
    # The job of another test may still be completing.
    waiting = [job for job in slurm.jobs() if job.state == "PENDING"]
    assert [job.name for job in waiting] == ["a|b c", "several"]
    assert len({job.number for job in waiting}) == 2


def test_a_script_for_a_real_cluster_is_judged_without_one(slurm, script):
    good = script("--nodes=64", "--gpus-per-node=8", "--ntasks-per-node=1", "--cpus-per-task=96")
    assert "on nodes paper[1-64]" in slurm.would_start(good)
    assert "on nodes n[1-2]" in slurm.would_start(script("--nodes=2"), "debug")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes=64", "--gpus-per-node=9"], "Requested node configuration is not available"),
        (["--nodes=2049"], "Requested node configuration is not available"),
        (["--nodez=2"], "unrecognized option '--nodez=2'"),
    ],
)
def test_a_script_that_cannot_start_is_refused(slurm, script, options, words):
    with pytest.raises(ValueError, match=words):
        slurm.would_start(script(*options))
