"""What `course doctor` looks at on every machine: itself, what is installed, where one works."""

import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from course_lib import cluster, launch
from course_lib.home import home
from course_lib.lab import has_browser, repository
from course_lib.lab.chromium import INSTALL_CHROMIUM, browser_path
from course_lib.problem import Problem

STATUSES = ("ok", "slow", "missing")
REINSTALL = "run `pip install -e .` in the repository"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: status "ok", "slow" or "missing", what was found, what to do.

    Raises ValueError for another status, or for a fault without a remedy.
    """

    name: str
    status: str
    what: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is not ok, slow or missing: choose one")
        if self.status != "ok" and not self.remedy:
            raise ValueError(f"remedy of {self.name} is missing: say what to do about it")

    @property
    def line(self) -> str:
        """The finding on one line of text."""
        mark = f"[{self.status}]"
        tail = f": {self.remedy}" if self.remedy else ""
        return f"{mark:<10} {self.name:<16} {self.what}{tail}"


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


OLDEST_PYTHON = (3, 11)


def python() -> Finding:
    """Python's version against the one the course needs."""
    version = sys.version.split()[0]
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", "missing", f"{version} is too old", "install Python 3.11 or newer")
    return Finding("Python", "ok", version)


def packages() -> Finding:
    """Installed versions against the bounds the course was tested with."""
    try:
        faults = list(_version_faults())
    except importlib.metadata.PackageNotFoundError:
        return Finding("packages", "missing", "the course is not installed", REINSTALL)
    if faults:
        return Finding("packages", "missing", "; ".join(faults), REINSTALL)
    return Finding("packages", "ok", "all within the tested versions")


def _version_faults() -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires("course-lib") or []:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{wanted.name} is not installed"
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            yield f"{wanted.name} {found} is outside {wanted.specifier}"


def widgets() -> Finding:
    """The two halves of ipywidgets: sliders stay blank when JupyterLab's half does not match."""
    remedy = 'run `pip install --upgrade "ipywidgets>=8.1,<9"`, then restart JupyterLab'
    try:
        kernel_half = importlib.metadata.version("ipywidgets")
        lab_half = importlib.metadata.version("jupyterlab_widgets")
    except importlib.metadata.PackageNotFoundError as absent:
        return Finding("sliders", "missing", f"{absent.name} is not installed", remedy)
    text = f"ipywidgets {kernel_half} with jupyterlab_widgets {lab_half}"
    # ipywidgets 8 speaks the protocol of jupyterlab_widgets 3.
    if kernel_half.split(".")[0] != "8" or lab_half.split(".")[0] != "3":
        return Finding("sliders", "missing", f"{text} do not match", remedy)
    return Finding("sliders", "ok", text)


def torch_build() -> Finding:
    """Whether torch can be imported, and for what it was built."""
    try:
        import torch
    except ImportError as error:
        return Finding("torch", "missing", f"cannot be imported ({error})", REINSTALL)
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    return Finding("torch", "ok", f"{torch.__version__}, built {built}")


def gloo() -> Finding:
    """gloo carries messages between ranks on a CPU; no demo runs without it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        remedy = "install torch from pytorch.org or PyPI, whose builds have it"
        return Finding("gloo", "missing", "this torch was built without it", remedy)
    return Finding("gloo", "ok", "ranks can talk on the CPU")


def nccl() -> Finding:
    """NCCL carries messages between GPUs; without GPUs it is not needed."""
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    if dist.is_available() and dist.is_nccl_available():
        return Finding("NCCL", "ok", "there" if count else "there, and not used without GPUs")
    if count < 2:
        return Finding("NCCL", "ok", f"not there, and not needed with {count} GPUs")
    remedy = "install torch's CUDA build for Linux; until then demos use gloo"
    return Finding("NCCL", "slow", f"not there, though there are {count} GPUs", remedy)


def browser() -> Finding:
    """A browser for JupyterLab."""
    if has_browser():
        return Finding("browser", "ok", "found")
    remedy = "run `course lab --no-browser` and open the printed address in any browser"
    there = browser_path()
    what = f"{there} is there, but opens no window here" if there else "none found on this machine"
    return Finding("browser", "slow", what, remedy)


def pdf() -> Finding:
    """What prints the report."""
    there = browser_path()
    if there:
        return Finding("PDF", "ok", f"`course report` prints by {there}")
    if find_spec("playwright"):
        what = "`course report` prints by playwright, after `playwright install chromium`"
        return Finding("PDF", "ok", what)
    return Finding("PDF", "slow", "`course report` writes HTML only", INSTALL_CHROMIUM)


def slurm() -> Finding:
    """What `course cluster` needs, and nothing else."""
    lacking = cluster.obstacle()
    if lacking:
        return Finding("Slurm", "ok", f"not needed but by `course cluster`; {lacking}")
    return Finding("Slurm", "ok", "with munge, for `course cluster up`")


def notebooks() -> Finding:
    """The notebooks beside the package."""
    try:
        return Finding("notebooks", "ok", str(repository() / "notebooks"))
    except Problem as problem:
        what, _, remedy = str(problem).partition(": ")
        return Finding("notebooks", "missing", what, remedy)


def progress_folder() -> Finding:
    """Whether progress can be saved."""

    try:
        home().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home()).close()
    except OSError as error:
        remedy = "set COURSE_HOME to a folder of yours; until then progress is not saved"
        what = f"{home()} cannot be written ({error.strerror})"
        return Finding("progress", "slow", what, remedy)
    return Finding("progress", "ok", str(home()))


SLOW_START_S = 20.0
START_TIMEOUT_S = 120.0


def ranks(count: int = 2) -> Finding:
    """Start `count` ranks, as every demo does, and let them add up their numbers."""
    name = f"{count} ranks"
    try:
        taken_s = _start(count)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "fix what is missing above, close other programs and try again"
        return Finding(name, "missing", f"did not start ({said})", remedy)
    text = f"started, exchanged numbers and ended in {taken_s:.1f} s"
    if taken_s > SLOW_START_S:
        return Finding(name, "slow", text, "close other programs; a virus scanner may slow starts")
    return Finding(name, "ok", text)


def _start(count: int) -> float:
    """Seconds that `count` ranks took. Raises what the launcher raises, or RuntimeError."""
    start_s = time.monotonic()
    sums = launch.run(_add_up_ranks, ranks=count, timeout_s=START_TIMEOUT_S, stream=False)
    expected = sum(range(count))
    if sums != [expected] * count:
        raise RuntimeError(f"the ranks added up their numbers to {sums} instead of {expected}")
    return time.monotonic() - start_s


def _add_up_ranks() -> int:
    import torch
    import torch.distributed as dist

    rank = launch.init()
    number = torch.tensor(rank.rank, device=rank.device)
    dist.all_reduce(number)
    return int(number)
