"""Starts JupyterLab at the next notebook of the learner's route, configured for fast sliders."""

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

from course_lib.home import FIRST, place
from course_lib.problem import Problem

PROMPT = "course_lib.lab.server.PromptConnection"
CONTENTS = "course_lib.lab.server.Contents"
# Each folder in STYLE is a JupyterLab extension; SETTINGS has default settings, which the learner's
# own override.
STYLE = Path(__file__).parent / "style"
SETTINGS = Path(__file__).parent / "settings"


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

    Raises Problem as `place`, `require_writable` and `require_free` do, or if JupyterLab is
    not installed.
    """
    root = place()
    if importlib.util.find_spec("jupyterlab") is None:
        raise Problem("JupyterLab is missing: run `pip install jupyterlab`")
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
