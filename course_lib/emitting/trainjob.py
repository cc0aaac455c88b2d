"""Export to a Kubeflow TrainJob: torchrun in one pod per node, connected by the runtime.

Fields: trainer.kubeflow.org/v1alpha1, as of Trainer 2.3. The runtime `torch-distributed` passes
torchrun the number of nodes and the rendezvous in variables (PET_NNODES, …).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from course_lib.emitting.course import program
from course_lib.emitting.head import commented, head
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.models import Constants

VERSION = "Kubeflow Trainer 2.3, trainer.kubeflow.org/v1alpha1"
FILE = "trainjob.yaml"
# A placeholder: the image needs torch and the program that the command runs.
IMAGE, CLAIM, FOLDER = "course:latest", "course", "/plan"
# Resource names of device plugins for accelerators other than NVIDIA's.
_RESOURCES = {"MI300X": "amd.com/gpu", "TPUv5p": "google.com/tpu"}
# Host resources per GPU, for ranks and their data-loader workers.
_CORES, _GIB = 12, 96


def files(job: Job, model: str, _constants: Constants) -> dict[str, str]:
    """The text of `trainjob.yaml`, with one pod per node of the cluster."""
    arguments, cluster = program(job), job.cluster
    gpus = cluster.gpus_per_node
    chip = _RESOURCES.get(cluster.accelerator.name, "nvidia.com/gpu")
    more = [
        f"kubectl create -f {FILE}",
        "to fill in:",
        f"- image: {IMAGE} stands for one with the program and all that it imports",
        f"- claimName: {CLAIM} stands for a PersistentVolumeClaim (ReadWriteMany) with scripts, "
        f"data and checkpoints, which each pod sees as {FOLDER}",
        f"- cpu and memory: {_CORES} cores and {_GIB} GiB a GPU; what the nodes have to give",
        f"- {chip}: as the device plugin of the cluster calls the GPUs",
    ]
    if cluster.nodes > 1:
        more += [
            f"- RDMA: add the adapters to requests and limits as the cluster calls them, such as "
            f"rdma/ib: {gpus}; without them NCCL takes TCP, many times slower than planned",
        ]
    if not arguments:
        more += [
            f"- ENGINE: the script in {FOLDER} that starts it: megatron.sh of --emit megatron, ...",
            "- env: what the head of that script asks for; HEAD, PORT and NODE are set",
        ]
    text = train_job(
        "plan",
        ["torchrun", *arguments] if arguments else ["bash", "-c", _SCRIPT],
        nodes=cluster.nodes,
        processes=gpus,
        resources={"cpu": _CORES * gpus, "memory": f"{_GIB * gpus}Gi", chip: gpus},
        env={} if arguments else _ENV,
        claim=CLAIM,
    )
    return {FILE: head(job, model, VERSION, more) + text}


# Kubeflow's rendezvous variables for torchrun, under the names that our scripts use.
_SCRIPT = (
    f'cd {FOLDER} && HEAD="$PET_MASTER_ADDR" PORT="$PET_MASTER_PORT" NODE="$PET_NODE_RANK" '
    'exec bash "$ENGINE"'
)
_ENV = {
    "ENGINE": "megatron.sh",
    "MEGATRON": "/opt/megatron-lm",
    "MODEL": f"{FOLDER}/model",
    "DATA": "mock",
    "TOKENIZER": f"{FOLDER}/tokenizer",
    "CHECKPOINTS": f"{FOLDER}/checkpoints",
    "NCCL_DEBUG": "WARN",
}


def demo_files(name: str, argv: Sequence[str], ranks: int) -> dict[str, str]:
    """The text of `trainjob.yaml` for a demo, with all ranks in one pod."""
    lines = [
        f"the demo {name} on {ranks} ranks",
        f"written for {VERSION}",
        f"kubectl create -f {FILE}",
        f"{IMAGE}: an image with torch and this course, pip install . in its repository",
    ]
    command = ["torchrun", "-m", "course_lib.demos", name, *argv]
    text = train_job(name, command, nodes=1, processes=ranks, resources={"cpu": ranks})
    return {FILE: commented(lines) + text}


def train_job(
    name: str,
    command: Sequence[str],
    *,
    nodes: int,
    processes: int,
    resources: Mapping[str, int | str],
    env: Mapping[str, str] = MappingProxyType({}),
    claim: str = "",
) -> str:
    """The manifest that runs `command` in one pod per node; `claim` is mounted at FOLDER."""
    import yaml

    # Ranks of a pod communicate through /dev/shm, which Kubernetes limits to 64 MB.
    volumes: list[Any] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if claim:
        volumes.append({"name": "plan", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "plan", "mountPath": FOLDER})
    amounts = {kind: str(amount) for kind, amount in resources.items()}
    trainer: dict[str, Any] = {
        "image": IMAGE,
        "numNodes": nodes,
        "numProcPerNode": processes,
        "command": list(command),
        "resourcesPerNode": {"requests": amounts, "limits": dict(amounts)},
    }
    if env:
        trainer["env"] = [{"name": key, "value": value} for key, value in env.items()]
    node: Any = {"volumes": volumes, "containers": [{"name": "node", "volumeMounts": mounts}]}
    for _ in range(2):  # the job template, with the pod template nested in it
        node = {"template": {"spec": node}}
    patch = {"template": {"spec": {"replicatedJobs": [{"name": "node", **node}]}}}
    manager = "trainer.kubeflow.org/kubeflow-sdk"
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"generateName": f"{name.replace('_', '-')}-"},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": trainer,
            "runtimePatches": [{"manager": manager, "trainingRuntimeSpec": patch}],
        },
    }
    text: str = yaml.safe_dump(job, sort_keys=False, width=200)
    return text
