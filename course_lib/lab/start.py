"""Starts JupyterLab at the next notebook of the learner's route, configured for fast sliders."""

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

import course_lib
from course_lib.problem import Problem

FIRST = "notebooks/00_start_here.ipynb"
PROMPT = "course_lib.lab.server.PromptConnection"
CONTENTS = "course_lib.lab.server.Contents"
# Each folder in STYLE is a JupyterLab extension; SETTINGS has default settings, which the learner's
# own override.
STYLE = Path(__file__).parent / "style"
SETTINGS = Path(__file__).parent / "settings"


def repository() -> Path:
    """The root of the clone that has this package and notebooks/.

    Raises Problem if the package was installed without the repository, or if the working directory
    is in another clone of the course: its notebooks would run on this package.
    """
    root = Path(course_lib.__file__).resolve().parents[1]
    here = clone_around(Path.cwd())
    if here is not None and here != root:
        remedy = f"run `pip install -e .` in {here} to work there"
        remedy += f", or `cd {root}` first" if (root / FIRST).is_file() else ""
        raise Problem(
            f"{here} is a clone of the course, but its notebooks would run on the package in "
            f"{root / 'course_lib'}: {remedy}"
        )
    if not (root / FIRST).is_file():
        raise Problem(
            f"the notebooks are not beside the package in {root}: clone the repository and run "
            "`pip install -e .` in it"
        )
    return root


def clone_around(folder: Path) -> Path | None:
    """The clone of the course that is `folder` or contains it; None if there is none."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if _is_clone(each)), None)


def _is_clone(folder: Path) -> bool:
    return (folder / FIRST).is_file() and (folder / "course_lib").is_dir()


def command(root: Path, port: int | None, browser: bool, notebook: str = FIRST) -> list[str]:
    """The command line that starts JupyterLab at a notebook with this Python."""
    arguments = [
        *(sys.executable, "-m", "jupyter", "lab"),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{notebook}",
        f"--ServerApp.kernel_websocket_connection_class={PROMPT}",
        f"--ServerApp.contents_manager_class={CONTENTS}",
        f"--LabApp.extra_labextensions_path={STYLE}",
        f"--LabApp.app_settings_dir={SETTINGS}",
    ]
    if port is not None:
        # If a port is requested, Jupyter must not silently take the next free one.
        arguments += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if not browser:
        arguments.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # Containers run as root; the server listens on this machine only and asks for a token.
        arguments.append("--allow-root")
    return arguments


def require_free(port: int) -> None:
    """Raise Problem, naming a free port near it, if `port` is in use or out of range."""
    if not 1 <= port <= 65535:
        raise Problem(f"--port must be from 1 to 65535, got {port}: give another or none")
    if _is_free(port):
        return
    near = range(port + 1, min(port + 100, 65536))
    free = next((candidate for candidate in near if _is_free(candidate)), None)
    remedy = f"try --port {free}" if free else "leave --port out"
    raise Problem(f"port {port} is busy: {remedy}, or end the program that uses it")


def require_writable() -> None:
    """Create Jupyter's folders if they are missing; raise Problem if it cannot write to them.

    Jupyter starts without its settings folder, prints a traceback without its data folder, and
    does not start without its runtime folder.
    """
    from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir

    # By default the runtime folder is inside the data folder: one remedy is enough.
    for folder, variable in (
        (jupyter_data_dir(), "JUPYTER_DATA_DIR"),
        (jupyter_runtime_dir(), "JUPYTER_RUNTIME_DIR"),
    ):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if variable == "JUPYTER_RUNTIME_DIR":
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise Problem(
                f"Jupyter must write to {folder}, which is not possible ({error.strerror}): set "
                f"the variable {variable} to a folder of yours"
            ) from None


def has_browser() -> bool:
    """Whether Python's `webbrowser` finds a browser to open."""
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_lab(port: int | None = None, browser: bool = True, notebook: str = "") -> int:
    """Run JupyterLab at a notebook, by default the first, until it exits; return its exit code.

    Raises Problem as `repository`, `require_writable` and `require_free` do, or if JupyterLab is
    not installed.
    """
    root = repository()
    if importlib.util.find_spec("jupyterlab") is None:
        raise Problem("JupyterLab is missing: run `pip install -e .` in the repository")
    require_writable()
    if port is not None:
        require_free(port)
    if browser and not has_browser():
        browser = False
        print("No browser was found: open the address that Jupyter prints below in one.")
    print(f"The course in {root}")
    arguments = command(root, port, browser, notebook if (root / notebook).is_file() else FIRST)
    sys.stdout.flush()
    if os.name == "posix":
        # JupyterLab replaces this process, so that ending it leaves nothing behind.
        return os.execv(arguments[0], arguments)
    return subprocess.call(arguments)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Jupyter can reuse a port that a server has just closed; so must this probe.
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
