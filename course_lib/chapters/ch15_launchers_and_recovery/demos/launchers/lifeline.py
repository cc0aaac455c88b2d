"""Run a launcher with a time limit, and leave none of its workers behind.

A launcher starts its workers in new sessions, so they survive when the launcher is killed. Here
each worker keeps a connection to the process that waits for the result. When that process closes
it, or dies, the operating system closes the connection, and the worker exits.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from course_lib import launch
from course_lib.launch.job import TIMEOUT_VARIABLE

_VARIABLE = "COURSE_LIFELINE"
_END_S = 5.0  # grace period of a launcher after SIGTERM


def run(command: list[str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a launcher; returns its exit code, or None after a timeout, and its output.

    Its workers must call `hold` when they start. `folder`, for the rendezvous, must be empty.
    """
    # A file: unlike a pipe it never fills up, and no surviving worker can block its reader.
    with (
        socket.create_server(("127.0.0.1", 0), backlog=128) as listener,
        tempfile.TemporaryFile() as output,
    ):
        environment = _environment(folder, listener.getsockname()[1], limit_s)
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            listener.close()  # ends all workers, including those that have not called `hold` yet
            end(process)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def hold() -> None:
    """Exit as soon as the process that called `run` is gone; does nothing outside `run`."""
    port = os.environ.get(_VARIABLE)
    if port is not None:
        connection = socket.create_connection(("127.0.0.1", int(port)))
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()


def _end_with(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.recv(1)
    os._exit(1)


def _environment(folder: Path, port: int, limit_s: float) -> dict[str, str]:
    inherited = launch.private_environment(folder)
    # DeepSpeed looks for ninja, which is installed in this Python's bin folder.
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")])
    own = {"PATH": path, "TMPDIR": str(folder), TIMEOUT_VARIABLE: str(limit_s)}
    return inherited | own | {_VARIABLE: str(port)}


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the launcher, and kill it if it does not end in time."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
