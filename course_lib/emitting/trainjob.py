"""A TrainJob of Kubeflow Trainer: torchrun in a pod for each node, joined by the runtime.

Fields: trainer.kubeflow.org/v1alpha1, as of Trainer 2.3. The runtime `torch-distributed` tells
torchrun through variables (PET_NNODES, …) how many nodes there are and where they meet.
"""

from collections.abc import Sequence
from typing import Any

from course_lib.emitting.course import program
from course_lib.emitting.head import commented, head
from course_lib.theory.inputs.job import Job

VERSION = "Kubeflow Trainer 2.3, trainer.kubeflow.org/v1alpha1"
FILE = "trainjob.yaml"
# Whoever has a registry names the image; it needs torch and what the command runs.
IMAGE = "course:latest"
# What device plugins call the chips that are not NVIDIA's.
_RESOURCES = {"MI300X": "amd.com/gpu", "TPUv5p": "google.com/tpu"}


def files(job: Job, model: str) -> dict[str, str]:
    """`trainjob.yaml`: a pod for each node of the cluster."""
    found = program(job)
    more = [f"kubectl create -f {FILE}, with {IMAGE} an image that holds the program"]
    if not found:
        more.append("train.py stands for the program: no demo of the course runs this plan")
    sizes = {"nodes": job.cluster.nodes, "processes": job.cluster.gpus_per_node}
    chip = job.cluster.accelerator.name
    gpus = {_RESOURCES.get(chip, "nvidia.com/gpu"): job.cluster.gpus_per_node}
    text = train_job("plan", found or ["train.py"], **sizes, resources=gpus)
    return {FILE: head(job, model, VERSION, more) + text}


def demo_files(name: str, argv: Sequence[str], ranks: int) -> dict[str, str]:
    """`trainjob.yaml` of a demo: all ranks in one pod, as `course demo` has them on one machine."""
    lines = [
        f"the demo {name} on {ranks} ranks",
        f"written for {VERSION}",
        f"kubectl create -f {FILE}",
        f"{IMAGE}: an image with torch and this course, pip install . in its repository",
    ]
    program = ["-m", "course_lib.demos", name, *argv]
    text = train_job(name, program, nodes=1, processes=ranks, resources={"cpu": ranks})
    return {FILE: commented(lines) + text}


def train_job(
    name: str,
    program: Sequence[str],
    *,
    nodes: int,
    processes: int,
    resources: dict[str, int],
) -> str:
    """The manifest that runs torchrun with `program` on nodes × processes ranks."""
    import yaml

    job: dict[str, Any] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"generateName": f"{name.replace('_', '-')}-"},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "numNodes": nodes,
                "numProcPerNode": processes,
                "command": ["torchrun", *program],
                "resourcesPerNode": {
                    "requests": {kind: str(count) for kind, count in resources.items()},
                    "limits": {kind: str(count) for kind, count in resources.items()},
                },
            },
        },
    }
    text: str = yaml.safe_dump(job, sort_keys=False)
    return text
