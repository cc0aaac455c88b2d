"""A batch script for Slurm: one torchrun on each node, which meet at the first."""

import shlex

from course_lib.emitting.course import program
from course_lib.emitting.head import head, rendezvous
from course_lib.theory.inputs.job import Job

VERSION = "Slurm 22.05 and later"
FILE = "plan.sbatch"


def files(job: Job, model: str) -> dict[str, str]:
    """`plan.sbatch`. It starts the course's demo of this plan, or what stands behind its name."""
    cluster, found = job.cluster, program(job)
    what = "runs the course's demo of this plan" if found else "needs a command: no demo fits"
    more = [
        f"sbatch {FILE} {what}",
        f"sbatch {FILE} COMMAND runs any command on each node, such as: bash megatron.sh",
        f"without GPUs: sbatch --gpus-per-node=0 {FILE}",
    ]
    script = f"""\
#SBATCH --job-name=plan
#SBATCH --nodes={cluster.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={cluster.gpus_per_node}
#SBATCH --exclusive
set -euo pipefail
# This script runs on the first node: all others meet there.
export HEAD=$(hostname) PORT=$((20000 + SLURM_JOB_ID % 10000))
if [ $# -eq 0 ]; then
{_default(job, found)}
fi
srun "$@"
"""
    return {FILE: f"#!/bin/bash\n{head(job, model, VERSION, more)}{script}"}


def _default(job: Job, found: list[str]) -> str:
    """What runs where no command is given."""
    if found:
        return f"    set -- {rendezvous(job)} \\\n        {shlex.join(found)}"
    text = "no demo of the course trains this plan: name the command that does"
    return f'    echo "{text}" >&2\n    exit 2'
