"""The head of each file: the plan, what it costs, and what the file leaves open."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.peak import worst_stage
from course_lib.theory.step.step_time import step_time


def head(job: Job, model: str, engine: str, more: Sequence[str] = ()) -> str:
    """Comment lines: the plan, its predictions, the version of the engine, and `more`."""
    layout, cluster = job.layout, job.cluster
    stage, bill = worst_stage(job)
    where = f"pipeline rank {stage}, the fullest" if layout.pp > 1 else "each GPU"
    size = format_bytes(bill.total_bytes, digits=1)
    lines = [
        f"{model} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.accelerator.name}, "
        f"{layout.global_batch:,} sequences of {job.sequence:,} tokens in an update",
        words(layout),
        f"predicted: {size} on {where}; {step_time(job).total_s:.4g} s a step",
        f"written for {engine}",
        *more,
    ]
    return commented(lines)


def commented(lines: Sequence[str]) -> str:
    """The lines, each with its #; nothing in one of them can start another."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def words(layout: Layout) -> str:
    """The settings of a layout that are not 1 or off: "dp=4 tp=2 zero_stage=1"."""
    default = Layout()
    given = {name: value for name, value in vars(layout).items() if value != getattr(default, name)}
    return " ".join(f"{name}={value}" for name, value in given.items()) or "one GPU"


def as_its_stage_does(layout: Layout) -> bool:
    """Whether gradients are exchanged when the ZeRO stage does it by itself."""
    return layout.reduces == replace(layout, reduce=None).reduces


def precision(job: Job) -> str:
    """What the passes compute in: "fp32", "bf16" or "fp16"."""
    return job.recipe.compute or job.recipe.parameters


def keeps_fp32(job: Job) -> bool:
    """Whether fp32 weights are kept, as the only ones or beside 16-bit ones."""
    return job.recipe.master_copy or job.recipe.parameters == "fp32"


def every(job: Job, minutes: int = 30) -> int:
    """So many updates take about `minutes`, as predicted: the interval of checkpoints."""
    return max(1, round(60 * minutes / step_time(job).total_s))


# What every script needs and no plan knows, each in a variable, which sbatch and srun hand on.
_CHECKPOINTS = "a folder for checkpoints that all nodes see; the run resumes there"
_STEPS = "updates of the run, 100 without it"
_MEETING = {"HEAD": "the name of the first node", "PORT": "a free port there"}
_BY_ITSELF = "; plan.sbatch and trainjob.yaml set it"


def script(
    job: Job, model: str, engine: str, body: str, *, file: str, needs: Mapping[str, str],
    also: Mapping[str, str] = MappingProxyType({}), more: Sequence[str] = (),
) -> str:  # fmt: skip
    """A script for each node. What `needs` lists it insists on, `also` is for some runs.

    The comment at its head lists both; words behind a semicolon are in that list only.
    """
    needs = {**needs, "CHECKPOINTS": _CHECKPOINTS}
    start = f"start it: bash {file}"
    if job.cluster.nodes > 1:
        needs |= {name: f"{what}{_BY_ITSELF}" for name, what in _MEETING.items()}
        start = f"start it: sbatch plan.sbatch bash {file} (plan.sbatch: --emit slurm)"
    listed = {**needs, **also, "STEPS": _STEPS}
    lines = [
        *more,
        start,
        "to fill in, as variables (export NAME=...), paths in full:",
        *(f"- {name}: {what}" for name, what in listed.items()),
    ]
    insist = [f': "${{{name}:?{what.split(";")[0]}}}"\n' for name, what in needs.items()]
    strict = ["set -euo pipefail\n", 'cd "$(dirname "$0")"\n', *insist]
    return f"#!/bin/bash\n{head(job, model, engine, lines)}{''.join(strict)}{body}"


def rendezvous(job: Job) -> str:
    """torchrun with its options for all nodes, which meet where HEAD and PORT say."""
    cluster = job.cluster
    command = f"torchrun --nnodes={cluster.nodes} --nproc-per-node={cluster.gpus_per_node}"
    if cluster.nodes == 1:
        return f"{command} --standalone"
    meeting = '--rdzv-id="${SLURM_JOB_ID:-plan}" --rdzv-backend=c10d'
    return f'{command} {meeting} --rdzv-endpoint="$HEAD:$PORT"'
