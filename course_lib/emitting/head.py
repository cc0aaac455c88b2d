"""The comment at the head of each file, and code that the targets share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.peak import worst_stage
from course_lib.theory.step.step_time import step_time


def head(job: Job, model: str, engine: str, more: Sequence[str] = ()) -> str:
    """Comment lines: the plan, its predictions, the engine's version, and `more`."""
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
    """The lines as # comments; line breaks inside a line are removed."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def words(layout: Layout) -> str:
    """The non-default settings of a layout: "dp=4 tp=2 zero_stage=1"."""
    default = Layout()
    changed = {key: value for key, value in vars(layout).items() if value != getattr(default, key)}
    return " ".join(f"{key}={value}" for key, value in changed.items()) or "one GPU"


def as_its_stage_does(layout: Layout) -> bool:
    """Whether gradients are exchanged as often as is the default of the ZeRO stage."""
    return layout.reduces == replace(layout, reduce=None).reduces


def precision(job: Job) -> str:
    """The compute precision: "fp32", "bf16" or "fp16"."""
    return job.recipe.compute or job.recipe.parameters


def keeps_fp32(job: Job) -> bool:
    """Whether fp32 weights are kept, either alone or in addition to 16-bit ones."""
    return job.recipe.master_copy or job.recipe.parameters == "fp32"


def every(job: Job, minutes: int = 30) -> int:
    """The checkpoint interval: the number of updates in `minutes`, as predicted."""
    return max(1, round(60 * minutes / step_time(job).total_s))


# Inputs of every script that no plan contains: variables, which sbatch and srun pass on.
_CHECKPOINTS = "a folder for checkpoints that all nodes see; the run resumes there"
_STEPS = "updates of the run, 100 without it"
_MEETING = {"HEAD": "the name of the first node", "PORT": "a free port there"}
_BY_ITSELF = "; plan.sbatch and trainjob.yaml set it"


def script(
    job: Job, model: str, engine: str, body: str, *, file: str, needs: Mapping[str, str],
    also: Mapping[str, str] = MappingProxyType({}), more: Sequence[str] = (),
) -> str:  # fmt: skip
    """A bash script for each node; variables in `needs` are required, in `also` optional.

    The comment at its head lists both; text after a semicolon appears in that list only.
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
    """The torchrun command for all nodes, with their rendezvous at $HEAD:$PORT."""
    cluster = job.cluster
    command = f"torchrun --nnodes={cluster.nodes} --nproc-per-node={cluster.gpus_per_node}"
    if cluster.nodes == 1:
        return f"{command} --standalone"
    meeting = '--rdzv-id="${SLURM_JOB_ID:-plan}" --rdzv-backend=c10d'
    return f'{command} {meeting} --rdzv-endpoint="$HEAD:$PORT"'
