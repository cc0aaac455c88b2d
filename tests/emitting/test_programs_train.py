"""The programs of the emitted sets train: each on two processes here, and each resumes.

They start from one seed and see the same tokens, so that DeepSpeed's shards, accelerate's and one
batch script on two nodes of Slurm have one loss.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib import emitting
from course_lib.chapters.ch15_launchers_and_recovery.cluster import configuration
from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.huggingface import read_configuration
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import RECIPES

for name in ("transformers", "deepspeed", "accelerate"):
    pytest.importorskip(name)

pytestmark = pytest.mark.engine("transformers", "deepspeed", "accelerate", "g++")
CONFIGURATION = {
    **{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128},
    **{"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4},
}
# Without a GPU accelerate would leave FSDP out: these processes call themselves GPUs.
AS_GPUS = """
import runpy, sys
import accelerate.state as state
made = state.PartialState.__init__
def as_gpu(self, *args, **more):
    made(self, *args, **more)
    if self.distributed_type == state.DistributedType.MULTI_CPU:
        self.distributed_type = state.DistributedType.MULTI_GPU
state.PartialState.__init__ = as_gpu
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def set_of(engine, stage, nodes, folder):
    """An emitted set for a small model on two ranks, and the variables that it asks for."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIGURATION))
    shape = read_configuration(folder / "model").shape
    layout = Layout(dp=2, zero_stage=stage, micro_batch=2, accumulation=2)
    cluster = Cluster(accelerator("H100-SXM"), nodes, 2 // nodes)
    job = Job(shape, replace(RECIPES["fp32-16"], recompute="full"), layout, cluster, 32)
    for target in ("slurm", engine):
        emitting.write(emitting.files(target, job, "small"), folder)
    if (engine, stage) == ("accelerate", 3):
        path = folder / "accelerate.sh"
        (folder / "as_gpus.py").write_text(AS_GPUS)
        path.write_text(path.read_text().replace("    train_acc", "    as_gpus.py train_acc"))
    own = {"MODEL": f"{folder}/model", "DATA": "mock", "CHECKPOINTS": f"{folder}/saved"}
    own |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return {**own, "PATH": path, "OMP_NUM_THREADS": "1"}


def losses(text):
    return dict(re.findall(r"update (\d+): loss ([\d.]+)", text))


@pytest.mark.parametrize("engine", ["deepspeed", "accelerate"])
def test_it_trains_and_resumes(engine, tmp_path):
    own = set_of(engine, 3, 1, tmp_path)

    def run(steps):
        command = ["bash", str(tmp_path / f"{engine}.sh")]
        variables = {**os.environ, **own, "STEPS": steps}
        found = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert not found.returncode, found.stderr[-3000:]
        return losses(found.stdout)

    first, later = run("2"), run("4")
    assert list(first) == ["1", "2"] and list(later) == ["3", "4"]
    if engine == "deepspeed":  # it draws its first weights module by module
        assert float(first["1"]) == pytest.approx(5.545, abs=0.1)  # ln 256
    else:
        assert first | later == {"1": "5.5593", "2": "5.5943", "3": "5.5409", "4": "5.5633"}


@pytest.mark.engine(*configuration.PROGRAMS)
def test_slurm_starts_it_on_two_nodes(slurm, tmp_path):
    own = set_of("deepspeed", 0, 2, tmp_path)
    command = [
        "sbatch",
        "--wait",
        "--partition=debug",
        "--gpus-per-node=0",
        f"--output={tmp_path}/printed",
    ]
    command += [f"--chdir={tmp_path}", "plan.sbatch", "bash", "deepspeed.sh"]
    variables = {**slurm.environment, **own, "STEPS": "2"}
    sent = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)
    printed = (tmp_path / "printed").read_text()
    assert not sent.returncode, printed
    assert losses(printed) == {"1": "5.5593", "2": "5.5943"}
