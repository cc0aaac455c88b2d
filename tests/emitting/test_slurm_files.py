"""Slurm judges every emitted script; on its two nodes one runs, and sends what was predicted."""

import re
import time
from collections import Counter
from dataclasses import replace

import pytest
from plans import JOBS

from course_lib import cli, emitting
from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration as packages
from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.planner import plan

pytestmark = pytest.mark.engine(*packages.PROGRAMS)
DEMO = JOBS["demo"]
TWO_BY_TWO = "--nodes 2 --gpus-per-node 2 --recipe fp32-16 --batch 8"
SMALL = "--layers 4 --hidden 32 --heads 4 --ffn 128 --vocab 128 --context 16"


@pytest.fixture
def script(tmp_path):
    def write(job):
        text, *_ = emitting.files("slurm", job, "a model").values()
        path = tmp_path / "plan.sbatch"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("name", JOBS)
def test_slurm_would_start_it_on_as_many_nodes(name, slurm, script):
    nodes = JOBS[name].cluster.nodes
    answer = slurm.would_start(script(JOBS[name]))
    names = "paper1" if nodes == 1 else f"paper[1-{nodes}]"
    assert answer.endswith(f"on nodes {names} in partition paper"), answer


def finished(slurm, tmp_path, path):
    """What a job printed, once it has ended."""
    output = tmp_path / "printed"
    command = ["sbatch", "--partition=debug", "--gpus-per-node=0", f"--output={output}"]
    command += [f"--chdir={tmp_path}", str(path)]
    sent = slurm.run(command)
    assert not sent.returncode, sent.stderr
    wait_until(lambda: not slurm.jobs())
    return output.read_text()


def wait_until(holds):
    until_s = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.2)


def check_what_was_sent(job, printed):
    """The demo's own count, on rank 0 and so on the first stage, beside the plan's traffic."""
    assert f"scratch dp {job.layout.dp} x tp {job.layout.tp} x pp {job.layout.pp}: " in printed
    lines = re.findall(r"^ +sent +\d+ x (.+?) +([\d,]+) B", printed, re.MULTILINE)
    sent = {what: int(size.replace(",", "")) for what, size in lines}
    planned = Counter()
    for entry in step_traffic(job, 0).collectives:
        planned[f"{entry.axis} {entry.operation}"] += round(entry.count * entry.size_bytes)
    assert sent == planned and sum(sent.values()) > 10_000


def test_the_job_of_a_plan_sends_what_was_predicted(slurm, tmp_path, capsys):
    """From the command line to the ledger of four ranks on two nodes."""
    asked = ["plan", "gpt2-124m", *SMALL.split(), *TWO_BY_TWO.split()]
    cluster_of_two = Cluster(accelerator("H100-SXM"), 2, 2)
    found = plan(DEMO.shape, DEMO.recipe, cluster_of_two, 8, sequence=16)
    layouts = [option.layout for option in found.ranked(found.fitting)]
    number = layouts.index(DEMO.layout)
    argv = [*asked, "--emit", "slurm", "--layout", str(number + 1), "--to", str(tmp_path)]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/plan.sbatch\n"
    check_what_was_sent(DEMO, finished(slurm, tmp_path, tmp_path / "plan.sbatch"))


def test_a_plan_that_no_demo_trains_asks_for_a_command(slurm, script, tmp_path):
    path = script(replace(JOBS["demo"], recipe=JOBS["70b"].recipe))
    assert "which program? sbatch plan.sbatch bash megatron.sh" in finished(slurm, tmp_path, path)
    command = ["sbatch", "--wait", "--partition=debug", "--gpus-per-node=0"]
    command += [f"--output={tmp_path}/hosts", f"--chdir={tmp_path}", str(path)]
    slurm.run([*command, "printenv", "SLURMD_NODENAME"])
    assert sorted((tmp_path / "hosts").read_text().split()) == ["n1", "n2"]
