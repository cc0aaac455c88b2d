"""The program of one rank: joins the process group, calls the function, reports the result."""

import contextlib
import errno
import faulthandler
import io
import linecache
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from course_lib.launch import group, recorder
from course_lib.launch.errors import disk_full, explain, message_of
from course_lib.launch.job import (
    STEPS_VARIABLE,
    STORE_VARIABLE,
    TIMEOUT_VARIABLE,
    Folder,
    Job,
    Report,
    unpack,
)

_SOCKET_CHARACTERS = 70  # a socket's whole path has at most 103 (macOS), its name up to 30
NO_REPORT = (
    74  # exit code of a rank that could not even leave a report (the EX_IOERR of sysexits.h)
)


def main(folder_path: str, rank: int, lifeline: int) -> NoReturn:
    """Run this rank of the job in the folder, write a report there, and exit the process.

    `lifeline` is a file descriptor; end-of-file on it means that this rank is no longer wanted.
    """
    folder = Folder(Path(folder_path))
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # so that this rank's children can be killed with it
    try:
        _redirect_output(folder.of(rank, "log"))
        job: Job = unpack(folder.job)
    except FileNotFoundError:
        os._exit(1)  # the launch is over already: its cell was interrupted
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _prepare(job, folder, rank)
    report = _work(folder, rank)
    try:
        folder.write_report(rank, report)
    except OSError as error:
        print(f"no report could be written: {error}", file=sys.stderr, flush=True)
        os._exit(NO_REPORT)
    if not report.failed:
        # The report is already written; if leaving hangs, the deadline or the parent kills us.
        with contextlib.suppress(Exception):
            group.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads can abort or hang while the interpreter shuts down. After a
    # failure this also tells the other ranks at once, by closing the connections to them.
    os._exit(int(report.failed))


def _redirect_output(log: Path) -> None:
    """Redirect stdout and stderr of this process and its children to the log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)


def _end_with(lifeline: int) -> None:
    """Kill this rank and its process group when the other end of the lifeline is closed."""
    os.read(lifeline, 1)
    if hasattr(os, "killpg"):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _prepare(job: Job, folder: Folder, rank: int) -> None:
    """Set this rank's environment variables, working directory, threads and time limit."""
    os.environ.clear()  # the server's copy is old: use the parent's present environment
    os.environ.update(job.environment)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job.ranks),
        LOCAL_WORLD_SIZE=str(job.ranks),
        OMP_NUM_THREADS=str(job.threads),
    )
    os.environ[STORE_VARIABLE] = str(folder.store)
    os.environ[TIMEOUT_VARIABLE] = str(job.timeout_s)
    os.environ[STEPS_VARIABLE] = str(folder.of(rank, "steps"))
    sys.path[:], sys.argv[:] = job.path, job.arguments
    with contextlib.suppress(OSError):  # the directory may have been removed
        os.chdir(job.directory)
    tempfile.tempdir = None  # discard the value that the server may have cached
    linecache.cache.update(job.cell_sources)
    # Not "forkserver": DataLoader's workers must be in this rank's process group, and with "fork"
    # the class of their dataset may be defined in a cell.
    start_method = "fork" if sys.platform == "linux" else "spawn"
    multiprocessing.set_start_method(start_method, force=True)
    if len(str(folder.path)) < _SOCKET_CHARACTERS:
        # Multiprocessing's temporary files must be removed with the launch, even if this rank is
        # killed; there is no public way to set their folder.
        vars(multiprocessing.current_process())["_config"]["tempdir"] = str(folder.path)
    _limit_time(job.deadline_s, folder.of(rank, "stack"))
    import torch

    torch.set_num_threads(job.threads)


def _limit_time(deadline_s: float, stack: Path) -> None:
    """At the deadline, dump this rank's stack to a file and exit, however it hangs.

    faulthandler's thread does not need the GIL, so a rank that is stuck in C exits as well, even
    when the parent is gone.
    """
    file = open(stack, "wb")  # noqa: SIM115  (must stay open as long as the process lives)
    left_s = max(0.001, deadline_s - time.monotonic())
    faulthandler.dump_traceback_later(left_s, file=file, exit=True)


def _work(folder: Folder, rank: int) -> Report:
    """Call the function inside the process group; write its result and return a report."""
    try:
        function, args = unpack(folder.call)
        group.init()
        group.report_step(0, 0)
        result = function(*args)
    except BaseException as error:
        try:
            return _failure(error)
        except Exception as another:  # a DataLoader that loses a worker raises a little later
            return _failure(another)
    reason = _send(result, folder, rank)
    return Report(time.monotonic(), reason=reason)


def _send(result: Any, folder: Folder, rank: int) -> str:
    """Write the result for the parent; return the reason if that fails, else ""."""
    kind = type(result).__name__
    try:
        folder.write_result(rank, result)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return f"could not write its result, a {kind}: {disk_full(folder.path)}"
        return f"could not write its result, a {kind}: {error}"
    except Exception as error:
        return (
            f"returned a {kind} that cannot be sent to the parent ({message_of(error)}): return"
            " numbers, tensors or plain containers of them"
        )
    return ""


def _failure(error: BaseException) -> Report:
    # A peer's deadline may have ended our collective. Our own, due at the same moment, must not
    # dump the stack of this handler; the parent still kills this rank if it hangs here.
    faulthandler.cancel_dump_traceback_later()
    recorder.failed(error)
    if isinstance(error, SystemExit):
        reason = f"called sys.exit({error.code!r}) instead of returning a result"
    else:
        reason = explain(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the reader wants the function's own frames
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Report(time.monotonic(), reason=reason, traceback=text)
