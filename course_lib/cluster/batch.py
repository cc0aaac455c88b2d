"""The batch script of a job that survives the loss of a node."""

import shlex
import sys
from pathlib import Path

JOB = "course_lib.chapters.ch15_launchers_and_recovery.demos.elastic.resumable"


def batch_script(
    folder: Path,
    steps: int = 24,
    every: int = 5,
    pause_s: float = 0.0,
    *,
    interface: str = "lo",
    python: str = sys.executable,
) -> str:
    """What `sbatch` takes: torchrun on two nodes, and a job that resumes from `folder`.

    `steps` updates with a checkpoint after each `every`; `pause_s` of rest after each update leave
    time to watch. `interface`: the network between the nodes, wire0 where it is a slow one;
    `python`: what both nodes call it.
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
export COURSE_STORE=$FOLDER/store.$START GLOO_SOCKET_IFNAME={interface}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 OMP_NUM_THREADS=1

srun {python} -m torch.distributed.run \\
    --nnodes=2 --nproc-per-node=1 \\
    --rdzv-id=$SLURM_JOB_ID.$START --rdzv-backend=c10d \\
    --rdzv-conf=store_type=file --rdzv-endpoint=$FOLDER/meeting.$START \\
    --log-dir=$FOLDER/logs \\
    -m {JOB} $FOLDER \\
    --steps {steps} --every {every} --pause-s {pause_s:g}
"""
