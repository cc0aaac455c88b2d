"""What this machine or container offers: processors, memory, and connections to itself."""

import os
import shutil
import socket
from pathlib import Path

from course_lib.doctor.finding import Finding

# Two ranks with a small model take 0.6 GB; JupyterLab and a kernel with torch about as much.
ENOUGH_BYTES, LEAST_BYTES = 2 * 10**9, 600 * 10**6
# Data loader workers pass batches through it; Docker's default is 64 MB.
ENOUGH_SHM_BYTES = 500 * 10**6


def gpus() -> Finding:
    """The GPUs torch sees, and what they change."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        return Finding("GPUs", "ok", "none: everything runs on the CPU, as the course expects")
    names = ", ".join(sorted({torch.cuda.get_device_name(index) for index in range(count)}))
    return Finding("GPUs", "ok", f"{count} ({names}): demos with up to {count} ranks use NCCL")


def cores() -> Finding:
    """Processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    if count < 2:
        remedy = "give this machine or container 2 cores; until then use --ranks 2 at most"
        return Finding("cores", "slow", "1: ranks take turns", remedy)
    return Finding("cores", "ok", str(count))


def memory() -> Finding:
    """Memory that new processes can have."""
    from course_lib.launch.limits import available_memory_bytes

    free_bytes = available_memory_bytes()
    if free_bytes is None:
        return Finding("memory", "ok", "not known on this system; 2 GB free is enough")
    text = f"{free_bytes / 1e9:.1f} GB free"
    if free_bytes >= ENOUGH_BYTES:
        return Finding("memory", "ok", text)
    status = "slow" if free_bytes >= LEAST_BYTES else "missing"
    return Finding("memory", status, text, "close programs and kernels until 2 GB is free")


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Size of the shared memory folder, which containers make small."""
    if not folder.is_dir():
        return Finding("shared memory", "ok", f"no {folder} on this system, none needed")
    total_bytes = shutil.disk_usage(folder).total
    text = f"{total_bytes / 1e6:,.0f} MB in {folder}"
    if total_bytes < ENOUGH_SHM_BYTES:
        remedy = "start the container with `--shm-size=1g`, or data loader workers may die"
        return Finding("shared memory", "slow", text, remedy)
    return Finding("shared memory", "ok", text)


def loopback() -> Finding:
    """Whether a process can reach another one on this machine."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        remedy = "allow connections to 127.0.0.1 in the firewall or container"
        return Finding("loopback", "missing", f"127.0.0.1 cannot be reached ({error})", remedy)
    return Finding("loopback", "ok", "127.0.0.1 answers")
