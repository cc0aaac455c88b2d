"""The checks of `course doctor` for every machine: hardware, installed packages, folders."""

import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path

from course_lib import launch
from course_lib.home import clone, home, place
from course_lib.lab import has_browser
from course_lib.lab.chromium import INSTALL_CHROMIUM, browser_path
from course_lib.problem import Problem

REINSTALL = f"run `pip install {'-e .` in the clone' if clone() else '--upgrade course-lib`'}"


@dataclass(frozen=True)
class Finding:
    """The result of one check: status "ok", "slow" or "missing", the observation, the remedy."""

    name: str
    status: str
    what: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding on one line of text."""
        mark = f"[{self.status}]"
        tail = f": {self.remedy}" if self.remedy else ""
        return f"{mark:<10} {self.name:<16} {self.what}{tail}"


# The observation if all is well; else (status, observation, remedy).
Verdict = str | tuple[str, str, str]
LOOKS: list[Callable[[], Finding]] = []  # in the order of the report


def look(name: str) -> Callable[[Callable[[], Verdict]], Callable[[], Finding]]:
    """Add a check to LOOKS; an exception in it becomes a finding and does not hide the others."""

    def decorated(function: Callable[[], Verdict]) -> Callable[[], Finding]:
        @wraps(function)
        def checked() -> Finding:
            try:
                verdict = function()
            except Exception as error:
                what = f"could not be examined ({type(error).__name__}: {error})"
                verdict = ("missing", what, REINSTALL)
            return Finding(name, *(("ok", verdict) if isinstance(verdict, str) else verdict))

        LOOKS.append(checked)
        return checked

    return decorated


OLDEST_PYTHON = (3, 11)
# Two ranks with a small model use 0.6 GB; JupyterLab and a kernel with torch about the same.
ENOUGH_BYTES, LEAST_BYTES = 2 * 10**9, 600 * 10**6
# Data loader workers pass batches through it; Docker's default is 64 MB.
ENOUGH_SHM_BYTES = 500 * 10**6
SHARED_MEMORY = Path("/dev/shm")
# From here on, each process that could run has half a core or less.
MANY_PER_CORE = 2.0


@look("Python")
def python() -> Verdict:
    """Check Python's version."""
    version = sys.version.split()[0]
    if sys.version_info[:2] < OLDEST_PYTHON:
        return "missing", f"{version} is too old", "install Python 3.11 or newer"
    return version


@look("packages")
def packages() -> Verdict:
    """Check that installed versions are within the bounds the course was tested with."""
    try:
        faults = "; ".join(_version_faults())
    except importlib.metadata.PackageNotFoundError:
        faults = "the course is not installed"
    return ("missing", faults, REINSTALL) if faults else "all within the tested versions"


def _version_faults() -> Iterator[str]:
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires("course-lib") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{requirement.name} is not installed"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} is outside {requirement.specifier}"


@look("sliders")
def widgets() -> Verdict:
    """Check that ipywidgets' kernel and JupyterLab halves match; else sliders stay blank."""
    remedy = 'run `pip install --upgrade "ipywidgets>=8.1,<9"`, then restart JupyterLab'
    try:
        kernel_half = importlib.metadata.version("ipywidgets")
        lab_half = importlib.metadata.version("jupyterlab_widgets")
    except importlib.metadata.PackageNotFoundError as absent:
        return "missing", f"{absent.name} is not installed", remedy
    text = f"ipywidgets {kernel_half} with jupyterlab_widgets {lab_half}"
    # ipywidgets 8 speaks the protocol of jupyterlab_widgets 3.
    if kernel_half.split(".")[0] != "8" or lab_half.split(".")[0] != "3":
        return "missing", f"{text} do not match", remedy
    return text


@look("torch")
def torch_build() -> Verdict:
    """Check that torch can be imported; report whether it is built for CUDA or the CPU."""
    try:
        import torch
    except ImportError as error:
        return "missing", f"cannot be imported ({error})", REINSTALL
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    return f"{torch.__version__}, built {built}"


@look("gloo")
def gloo() -> Verdict:
    """Check for gloo, the backend for ranks on the CPU; no demo runs without it."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_gloo_available():
        return "ranks can talk on the CPU"
    remedy = "install torch from pytorch.org or PyPI, whose builds have it"
    return "missing", "this torch was built without it", remedy


@look("NCCL")
def nccl() -> Verdict:
    """Check for NCCL, the backend for GPUs; it is not needed with fewer than two."""
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    if dist.is_available() and dist.is_nccl_available():
        return "there" if count else "there, and not used without GPUs"
    if count < 2:
        return f"not there, and not needed with {count} GPUs"
    remedy = "install torch's CUDA build for Linux; until then demos use gloo"
    return "slow", f"not there, though there are {count} GPUs", remedy


@look("GPUs")
def gpus() -> Verdict:
    """Report the GPUs that torch sees, and what they change."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        return "none: everything runs on the CPU, as the course expects"
    names = ", ".join(sorted({torch.cuda.get_device_name(index) for index in range(count)}))
    return f"{count} ({names}): demos with up to {count} ranks use NCCL"


@look("cores")
def cores() -> Verdict:
    """Check the number of CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    if count < 2:
        remedy = "give this machine or container 2 cores; until then use --ranks 2 at most"
        return "slow", "1: ranks take turns", remedy
    return str(count)


@look("load")
def load() -> Verdict:
    """Check whether other programs keep this machine's cores busy."""
    if not hasattr(os, "getloadavg"):
        return "not known on this system"
    waiting, count = os.getloadavg()[0], os.cpu_count() or 1
    text = f"{waiting:.1f} processes ready to run in the last minute, on {count} cores"
    if waiting >= MANY_PER_CORE * count:
        return "slow", text, "close programs and old kernels; until then all takes longer"
    return text


@look("memory")
def memory() -> Verdict:
    """Check the memory available to new processes."""
    from course_lib.launch.limits import available_memory_bytes

    free_bytes = available_memory_bytes()
    if free_bytes is None:
        return "not known on this system; 2 GB free is enough"
    text = f"{free_bytes / 1e9:.1f} GB free"
    if free_bytes >= ENOUGH_BYTES:
        return text
    status = "slow" if free_bytes >= LEAST_BYTES else "missing"
    return status, text, "close programs and kernels until 2 GB is free"


@look("shared memory")
def shared_memory() -> Verdict:
    """Check the size of /dev/shm, which is small in containers."""
    if not SHARED_MEMORY.is_dir():
        return f"no {SHARED_MEMORY} on this system, none needed"
    total_bytes = shutil.disk_usage(SHARED_MEMORY).total
    text = f"{total_bytes / 1e6:,.0f} MB in {SHARED_MEMORY}"
    if total_bytes < ENOUGH_SHM_BYTES:
        remedy = "start the container with `--shm-size=1g`, or data loader workers may die"
        return "slow", text, remedy
    return text


@look("loopback")
def loopback() -> Verdict:
    """Check that a process can connect to another one through 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        remedy = "allow connections to 127.0.0.1 in the firewall or container"
        return "missing", f"127.0.0.1 cannot be reached ({error})", remedy
    return "127.0.0.1 answers"


@look("browser")
def browser() -> Verdict:
    """Check for a browser for JupyterLab."""
    if has_browser():
        return "found"
    path = browser_path()
    what = f"{path} is there, but opens no window here" if path else "none found on this machine"
    return "slow", what, "run `course lab --no-browser` and open the printed address in any browser"


@look("PDF")
def pdf() -> Verdict:
    """Check for a program that prints the report as PDF."""
    if path := browser_path():
        return f"`course report` prints by {path}"
    if find_spec("playwright"):
        return "`course report` prints by playwright, after `playwright install chromium`"
    return "slow", "`course report` writes HTML only", INSTALL_CHROMIUM


@look("notebooks")
def notebooks() -> Verdict:
    """Check that one is in a folder of the course, or in the clone that the package runs from."""
    try:
        return str(place() / "notebooks")
    except Problem as problem:
        what, _, remedy = str(problem).partition(": ")
        return "missing", what, remedy


@look("progress")
def progress_folder() -> Verdict:
    """Check that progress can be saved."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home()).close()
    except OSError as error:
        remedy = "set COURSE_HOME to a folder of yours; until then progress is not saved"
        return "slow", f"{home()} cannot be written ({error.strerror})", remedy
    return str(home())


SLOW_START_S = 20.0
START_TIMEOUT_S = 120.0


def ranks(count: int = 2) -> Finding:
    """Check that `count` ranks start, as for every demo, and can sum their rank numbers."""
    name, start_s = f"{count} ranks", time.monotonic()
    try:
        sums = launch.run(_add_up_ranks, ranks=count, timeout_s=START_TIMEOUT_S, stream=False)
        if sums != [sum(range(count))] * count:
            raise RuntimeError(f"they added up to {sums} instead of {sum(range(count))}")
    except Exception as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "fix what is missing above, close other programs and try again"
        return Finding(name, "missing", f"did not start ({what})", remedy)
    taken_s = time.monotonic() - start_s
    text = f"started, exchanged numbers and ended in {taken_s:.1f} s"
    if taken_s > SLOW_START_S:
        return Finding(name, "slow", text, "close other programs; a virus scanner may slow starts")
    return Finding(name, "ok", text)


def _add_up_ranks() -> int:
    import torch
    import torch.distributed as dist

    rank = launch.init()
    number = torch.tensor(rank.rank, device=rank.device)
    dist.all_reduce(number)
    return int(number)
