"""One rank, from its first line to its last: runs in the rank's process."""

import contextlib
import faulthandler
import io
import linecache
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from course_lib.launch import group
from course_lib.launch.explain import explain
from course_lib.launch.job import Folder, Job, Report

_WATCH_S = 0.2


def main(folder_path: str, rank: int) -> None:
    """Do this rank's part of the job in the folder, leave a report there, and end the process."""
    folder = Folder(Path(folder_path))
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # whatever this rank starts can be ended with it
    try:
        _redirect_output(folder.log(rank))
        job = folder.read_job()
    except FileNotFoundError:
        os._exit(1)  # the launch is over already: its cell was interrupted
    threading.Thread(target=_watch_parent, args=(folder,), daemon=True).start()
    _prepare(job, folder, rank)
    report = _work(job)
    folder.write_report(rank, report)
    if not report.failed:
        # The report is already written: if leaving fails, time limits and the parent end this rank.
        with contextlib.suppress(Exception):
            group.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads can abort or hang while the interpreter shuts down. After a
    # failure this also tells the other ranks at once, by closing the connections to them.
    os._exit(int(report.failed))


def _redirect_output(log: Path) -> None:
    """Send all that this process and its children print to the log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)


def _watch_parent(folder: Folder) -> None:
    """End this rank and all that it started when the parent dies or removes the folder.

    The parent removes it when it is interrupted, perhaps before it knows this process's id.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    while folder.path.exists() and parent.is_alive():
        parent.join(timeout=_WATCH_S)
    shutil.rmtree(folder.path, ignore_errors=True)
    if hasattr(os, "killpg"):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _prepare(job: Job, folder: Folder, rank: int) -> None:
    """Environment, threads and time limit of this rank."""
    os.environ.clear()  # the server was forked long ago: take what the parent has set since
    os.environ.update(job.environment)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job.ranks),
        LOCAL_WORLD_SIZE=str(job.ranks),
        OMP_NUM_THREADS=str(job.threads),
    )
    os.environ[group.STORE_VARIABLE] = str(folder.store)
    os.environ[group.TIMEOUT_VARIABLE] = str(job.timeout_s)
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    linecache.cache.update(job.cell_sources)
    # Not from the server: DataLoader's workers must be in this rank's process group, and where they
    # are forked, the class of their dataset may be defined in a cell.
    start_method = "fork" if sys.platform == "linux" else "spawn"
    multiprocessing.set_start_method(start_method, force=True)
    _limit_time(job.deadline_s, folder.stack(rank))
    import torch

    torch.set_num_threads(job.threads)


def _limit_time(deadline_s: float, stack: Path) -> None:
    """At the deadline, write down where this rank is and end it, however it hangs.

    A thread that does not need the interpreter's lock does it, so a rank that is stuck in C ends
    as well, even when the parent is gone.
    """
    file = open(stack, "wb")  # noqa: SIM115  (stays open for the life of the process)
    left_s = max(0.001, deadline_s - time.monotonic())
    faulthandler.dump_traceback_later(left_s, file=file, exit=True)


def _work(job: Job) -> Report:
    """Call the function inside the process group and report what came of it."""
    try:
        function, args = pickle.loads(job.call)
        group.init()
        result = function(*args)
    except SystemExit as error:
        return _failure(f"called sys.exit({error.code!r}) instead of returning a result", error)
    except BaseException as error:
        return _failure(explain(error), error)
    return _success(result)


def _success(result: Any) -> Report:
    import cloudpickle

    try:
        return Report(time.monotonic(), result=cloudpickle.dumps(result))
    except Exception as error:
        return Report(
            time.monotonic(),
            reason=f"returned a {type(result).__name__} that cannot be sent to the parent"
            f" ({error}): return numbers, tensors or plain containers of them",
        )


def _failure(reason: str, error: BaseException) -> Report:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next  # the reader wants the function's own frames
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Report(time.monotonic(), reason=reason, traceback=text)
