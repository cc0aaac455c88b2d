"""Export to Slurm: a batch script that runs one torchrun per node, with rendezvous at the first."""

import shlex

from course_lib.emitting.course import program
from course_lib.emitting.head import head, rendezvous
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants

VERSION = "Slurm 22.05 and later"
FILE = "plan.sbatch"
# Time limit of a first run, whose duration is unknown; it is then requeued and resumes.
TIME = "04:00:00"


def files(job: Job, model: str, _constants: Constants) -> dict[str, str]:
    """The text of `plan.sbatch`, which runs the command in its arguments, or the course's demo."""
    cluster, program_words = job.cluster, program(job)
    gpus = cluster.gpus_per_node
    what = "trains it by the course's own demo" if program_words else "asks for a COMMAND"
    more = [
        f"sbatch {FILE} {what}",
        f"sbatch {FILE} COMMAND runs any command on each node, such as: bash megatron.sh",
        f"without GPUs: sbatch --gpus-per-node=0 {FILE}",
        "to fill in, as options of sbatch or as variables (export NAME=...):",
        "- --account, --partition (SBATCH_ACCOUNT, SBATCH_PARTITION): where there is no default",
        f"- --time (SBATCH_TIMELIMIT), {TIME} here: at its end the job goes back into the queue "
        "and COMMAND starts again, which must resume by itself; with --no-requeue it ends",
        "- CONTAINER: the image to run in, for srun with Pyxis; without it the node's own software",
        "- MOUNTS: with CONTAINER, paths that it sees, as a:a,b:b; this folder without it",
        "- NCCL_SOCKET_IFNAME, NCCL_IB_HCA: only where NCCL finds the wrong network",
    ]
    script = f"""\
#SBATCH --job-name=plan
#SBATCH --nodes={cluster.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time={TIME}
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
# This script runs on the first node: all others meet there.
export HEAD=$(hostname) PORT=$((20000 + SLURM_JOB_ID % 10000))
cores=${{SLURM_CPUS_ON_NODE:-1}}
export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-$((cores > {gpus} ? cores / {gpus} : 1))}}
export NCCL_DEBUG=${{NCCL_DEBUG:-WARN}}
if [ $# -eq 0 ]; then
{_default(job, program_words)}
fi
image=()
if [ -n "${{CONTAINER:-}}" ]; then
    image=(--container-image="$CONTAINER" --container-workdir="$PWD")
    image+=(--container-mounts="${{MOUNTS:-$PWD:$PWD}}")
fi
# Slurm sends USR1 two minutes before the time is up.
trap 'scontrol requeue "$SLURM_JOB_ID" || true' USR1
srun --cpus-per-task="$cores" --kill-on-bad-exit=1 "${{image[@]}}" "$@" &
wait $! || {{ failed=$?; wait $! || exit $failed; }}
"""
    return {FILE: f"#!/bin/bash\n{head(job, model, VERSION, more)}{script}"}


def _default(job: Job, arguments: list[str]) -> str:
    """The shell lines for a call without a command."""
    if arguments:
        return f"    set -- {rendezvous(job)} \\\n        {shlex.join(arguments)}"
    text = f"which program? sbatch {FILE} bash megatron.sh, after course plan ... --emit megatron"
    return f'    echo "{text}" >&2\n    exit 2'
