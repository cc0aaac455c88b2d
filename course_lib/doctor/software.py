"""What is installed: Python, the packages and their versions, torch and how it was built."""

import importlib.metadata
import sys
from collections.abc import Iterator

from course_lib.doctor.finding import REINSTALL, Finding

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
