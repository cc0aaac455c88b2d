"""Runs a launcher with a time limit, and leaves none of its workers.

A launcher gives its workers sessions of their own, so that ending the launcher leaves them alive.
Here each worker holds a connection to the process that wants the result. When that process closes
it, or dies, the operating system breaks the connection, and the worker ends itself.
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
_END_S = 5.0  # for a launcher to end when it is told to


def run(command: list[str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """The exit code of a launcher, None if the limit came first, and all that was printed.

    Its workers must call `hold` when they start. They meet in the folder, which must be empty.
    """
    # A file: unlike a pipe it never fills up, and no worker keeps it open for its reader.
    with (
        socket.create_server(("127.0.0.1", 0), backlog=128) as line,
        tempfile.TemporaryFile() as output,
    ):
        environment = _environment(folder, line.getsockname()[1], limit_s)
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            line.close()  # ends all workers, and those that are yet to call `hold`
            end(process)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def hold() -> None:
    """End this process as soon as the one that waits for it, if there is one, is gone."""
    port = os.environ.get(_VARIABLE)
    if port is not None:
        line = socket.create_connection(("127.0.0.1", int(port)))
        threading.Thread(target=_end_with, args=(line,), daemon=True).start()


def _end_with(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.recv(1)
    os._exit(1)


def _environment(folder: Path, port: int, limit_s: float) -> dict[str, str]:
    kept = launch.private_environment(folder)
    # DeepSpeed looks for ninja, which is installed beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    own = {"PATH": path, "TMPDIR": str(folder), TIMEOUT_VARIABLE: str(limit_s)}
    return kept | own | {_VARIABLE: str(port)}


def end(process: subprocess.Popen[bytes]) -> None:
    """Leave no launcher behind, if need be by force."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
