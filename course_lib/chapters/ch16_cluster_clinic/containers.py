"""Checks of containers for training: shared memory, locked memory, devices; docker and pods.

Sources: docker's reference of `run`; ROCm, "Running ROCm Docker containers"; Kubernetes, "Schedule
GPUs" and "Extended resources"; Mellanox/k8s-rdma-shared-dev-plugin.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course_lib.clinic.recorded import Sign, unreadable

# NCCL needs about 10 MB for each pair of ranks, data loaders whole batches; docker gives 64 MB.
ENOUGH_SHM_BYTES = 10**9
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "hygon.com/dcu")


@dataclass(frozen=True)
class SharedMemory:
    """Size and use of /dev/shm, from `df`."""

    size_bytes: float
    used_bytes: float


def shared_memory(text: str) -> SharedMemory:
    """Parse the output of `df -h /dev/shm`. Raises ValueError if it has no row of that folder."""
    for line in text.splitlines():
        words = line.split()
        if words and words[-1] == "/dev/shm" and len(words) == 6:
            return SharedMemory(_size(words[1], line), _size(words[2], line))
    raise unreadable("df -h /dev/shm", text, "a row that ends with /dev/shm")


def locked_memory_kbytes(text: str) -> int | None:
    """Parse `ulimit -l` or `ulimit -a`: kbytes, or None for unlimited. Raises ValueError."""
    for line in text.splitlines():
        match = re.fullmatch(r"(?:max locked memory.*\(.*-l\) *)?(\d+|unlimited)", line.strip())
        if match:
            return None if match[1] == "unlimited" else int(match[1])
    raise unreadable("ulimit -l", text, "a number of kbytes, or 'unlimited'")


def memory_signs(shared: SharedMemory | None, locked_kbytes: int | None) -> list[Sign]:
    """Signs of too little shared memory (None: unknown) or a locked memory limit (None: none)."""
    signs = []
    if shared and shared.size_bytes < ENOUGH_SHM_BYTES:
        wrong = f"/dev/shm has {shared.size_bytes / 2**20:.0f} MiB"
        do = "start with --shm-size=16G or --ipc=host; in a pod mount an emptyDir of Memory there"
        signs.append(Sign(wrong, do, "who will need it: NCCL and data loaders fail only later"))
    if locked_kbytes is not None:
        wrong = f"a process may lock {locked_kbytes} kbytes, and RDMA locks all that it sends"
        signs.append(Sign(wrong, "docker: --ulimit memlock=-1; in a pod: IPC_LOCK"))
    return signs


# --- docker -------------------------------------------------------------------------------------


def docker_signs(line: str) -> list[Sign]:
    """Signs in `docker run …` of missing options for NVIDIA GPUs, or of options for other GPUs.

    Raises ValueError if `line` is another command.
    """
    words = shlex.split(line.replace("\\\n", " "))
    if words[:2] != ["docker", "run"]:
        raise unreadable("docker", line, "'docker run …'")
    flags = " ".join(words)
    signs = []
    if not re.search(r"--gpus|nvidia\.com/gpu|--runtime", flags):
        signs.append(Sign("no GPU is passed", "add --gpus all"))
    if re.search(r"--device[ =]/dev/kfd|/opt/hyhal", flags):
        wrong = "/dev/kfd and /opt/hyhal belong to AMD's and Hygon's drivers"
        signs.append(Sign(wrong, "leave them out: docker fails where the device is missing"))
    if "--shm-size" not in flags and "--ipc=host" not in flags:
        signs.append(Sign("/dev/shm will have 64 MB", "add --shm-size=16G or --ipc=host"))
    return signs


# --- pods ---------------------------------------------------------------------------------------


def pod_signs(pod: Mapping[str, Any]) -> list[Sign]:
    """Signs of what a pod lacks for training over RDMA; `pod` is its YAML or JSON as a dict.

    Raises ValueError if `pod` is not a pod.
    """
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    if not isinstance(spec, Mapping) or not spec.get("containers"):
        raise ValueError("pod has no spec.containers: give a pod, as `kubectl get pod -o json`")
    volumes = {one["name"]: one.get("emptyDir") or {} for one in spec.get("volumes") or ()}
    memory = {name for name, folder in volumes.items() if folder.get("medium") == "Memory"}
    return [sign for one in spec["containers"] for sign in _container_signs(one, memory)]


def _container_signs(container: Mapping[str, Any], memory: set[str]) -> Iterator[Sign]:
    name = container.get("name", "?")
    resources = container.get("resources") or {}
    limits, requests = (resources.get(kind) or {} for kind in ("limits", "requests"))
    security = container.get("securityContext") or {}
    added = (security.get("capabilities") or {}).get("add") or ()
    for key in sorted({*limits, *requests}):
        if "/" in key and str(limits.get(key)) != str(requests.get(key, limits.get(key))):
            wrong = f"{name}: {key} has requests {requests.get(key)} and limits {limits.get(key)}"
            yield Sign(wrong, "give both the same number: devices can't be overcommitted")
    if not any(key.startswith(_GPUS) for key in limits):
        yield Sign(f"{name} asks for no GPU", "add nvidia.com/gpu (amd.com/gpu) to its limits")
    if not any(key.startswith("rdma/") for key in limits):
        do = "add rdma/… to its limits: NCCL falls back to TCP without /dev/infiniband"
        yield Sign(f"{name} asks for no RDMA device", do, "whether the nodes have one")
    elif "IPC_LOCK" not in added and not security.get("privileged"):
        do = "add the capability IPC_LOCK: RDMA locks its memory, and the limit is small"
        yield Sign(f"{name} may not lock memory", do)
    if security.get("privileged"):
        do = "take only what it needs: IPC_LOCK, and devices as resources"
        yield Sign(f"{name} is privileged: it may do all that root may on the node", do)
    mounts = {m.get("mountPath"): m.get("name") for m in container.get("volumeMounts") or ()}
    if mounts.get("/dev/shm") not in memory:
        do = "mount an emptyDir with medium: Memory at /dev/shm"
        yield Sign(f"{name} has the small /dev/shm of its runtime, 64 MB", do)


def event_signs(text: str) -> list[Sign]:
    """Signs of why a pod is pending, from the events of `kubectl describe pod`."""
    lacking = dict.fromkeys(re.findall(r"Insufficient ([\w./-]*\w)", text))
    do = "compare with `kubectl describe node`: the name must be the one under Allocatable"
    unsaid = "whether all are in use, or no node has ever had one of that name"
    return [Sign(f"no node has enough {name}", do, unsaid) for name in lacking]


def _size(word: str, line: str) -> float:
    match = re.fullmatch(r"([\d.]+)([KMGT]?)", word)
    if not match:
        raise unreadable("df -h /dev/shm", line, "a size such as 64M")
    return float(match[1]) * _UNITS[match[2]]
