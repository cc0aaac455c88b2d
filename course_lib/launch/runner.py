"""The parent of a launch: starts the ranks, watches them, and kills every one of them."""

import errno
import linecache
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course_lib.launch import server
from course_lib.launch.errors import RankFailed, Stop, disk_full, message_of, uninterrupted
from course_lib.launch.job import FOLDER_VARIABLE, Folder, Job, pack, unpack
from course_lib.launch.limits import check_arguments, check_memory, threads_per_rank
from course_lib.launch.output import ProgressLine
from course_lib.launch.recorder import launch_name, write_json
from course_lib.launch.running import LAST_PART, RunningRank, first_cause
from course_lib.launch.server import RankProcesses, wait_until_warm

_LAST_LINES = 40
_OURS = re.compile(r"rank\d+\.(json|log|crash|term|unfinished)|launch\.json")


_GRACE_S = 0.5  # after a failure: another rank may still report, and turn out to be the cause
_LEAVE_S = 5.0  # after the last result: time for all ranks to leave the process group
_STACK_S = 1.0  # after the deadline: time for each rank to dump its stack


def run(
    function: Callable[..., Any],
    *args: Any,
    ranks: int = 2,
    timeout_s: float = 120.0,
    stream: bool = True,
    check_collectives: bool = False,
    record: Path | str | None = None,
) -> list[Any]:
    """Call `function(*args)` on every rank inside a process group; return the results by rank.

    The function may be defined in a cell. With `stream`, the output of the ranks is shown live.
    `check_collectives` makes ranks compare each collective before they start it (slow): a mismatch
    then names which rank called what. With it, torch 2.13 crashes in DistributedDataParallel.
    `record` names a folder for the pages of the ranks, which `course diagnose` reads.

    After 1 s a progress line appears; without `stream` only where it can be erased again, in a
    notebook or a terminal. Whatever happens, no process of a rank is left. Raises RankFailed, with
    the first cause, if a rank raises, dies, or has no result within `timeout_s` seconds; Stopped, a
    KeyboardInterrupt, after an interrupt; TypeError or ValueError for bad arguments; MemoryError or
    OSError, with a remedy, if this machine has too little memory, disk or processes.
    """
    check_arguments(function, ranks, timeout_s)
    check_memory(ranks)
    line = ProgressLine(timeout_s, chatty=stream)
    with uninterrupted() as stop:
        try:
            wait_until_warm(stop, line.warming_up, _own_modules(function, *args))
        finally:
            line.clear()
        with _folder() as folder:
            deadline_s = time.monotonic() + timeout_s
            _pack_call(function, args, folder)
            environment = dict(os.environ)
            if check_collectives:
                environment["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
            if record is not None:
                environment |= _prepared(Path(record))
            pack(_job(ranks, timeout_s, deadline_s, environment), folder.job)
            count_from_s = deadline_s - LAST_PART * timeout_s
            running = [
                RunningRank(folder, rank, stream, line.make_room, count_from_s)
                for rank in range(ranks)
            ]
            line.begin()
            try:
                started = server.started(folder, ranks, stop)
                try:
                    _watch(started, running, deadline_s, stop, line)
                finally:
                    started.end()
                    line.clear()
            finally:
                if record is not None:
                    _write_ends(Path(record), folder, running, timeout_s)
            results = _results(folder, running, timeout_s)
            stop.obey(ranks)
            line.done(ranks)
            return results


def _own_modules(*parts: object) -> set[str]:
    """The modules of this library that define `parts`, for the server to import once.

    Other modules may be edited between launches, so each launch imports them afresh.
    """
    names = {getattr(part, "__module__", None) or "" for part in parts}
    return {name for name in names if name.startswith("course_lib.")}


@contextmanager
def _folder() -> Iterator[Folder]:
    """A temporary folder for the launch; turns a full disk into an OSError with a remedy."""
    try:
        with tempfile.TemporaryDirectory(
            prefix="course_launch_", ignore_cleanup_errors=True
        ) as path:
            yield Folder(Path(path))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(errno.ENOSPC, disk_full(Path(tempfile.gettempdir()))) from error


def _pack_call(function: Callable[..., Any], args: tuple[Any, ...], folder: Folder) -> None:
    try:
        pack((function, args), folder.call)
    except OSError:
        raise
    except Exception as error:
        raise TypeError(
            f"function or one of its arguments cannot be sent to the ranks ({message_of(error)}):"
            " create inside the function what cannot be copied"
        ) from error


def _job(ranks: int, timeout_s: float, deadline_s: float, environment: dict[str, str]) -> Job:
    try:
        directory = os.getcwd()
    except FileNotFoundError:  # it has been removed
        directory = os.sep
    # Cells are not files: without these entries a rank's traceback would show no code.
    cells = {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None
    }
    return Job(
        ranks=ranks,
        threads=threads_per_rank(ranks),
        timeout_s=timeout_s,
        deadline_s=deadline_s,
        environment=environment,
        directory=directory,
        path=list(sys.path),
        arguments=list(sys.argv),
        cell_sources=cells,
    )


def _watch(
    started: RankProcesses,
    ranks: list[RunningRank],
    deadline_s: float,
    stop: Stop,
    line: ProgressLine,
) -> None:
    """Wait until all ranks exit, or until soon after the first failure, last result or deadline."""
    until_s = deadline_s + _STACK_S
    settled = False
    while any(not rank.ended for rank in ranks):
        stop.obey(len(ranks))
        now_s = time.monotonic()
        if now_s > until_s:
            return
        started.wait()
        for rank, code, pid in zip(ranks, started.exit_codes, started.pids, strict=True):
            rank.update(code, pid)
        if any(rank.failed and rank.output.too_long for rank in ranks):
            return
        if line.due:
            line.update([rank.steps for rank in ranks])
        if not settled and any(rank.failed for rank in ranks):
            until_s, settled = min(until_s, now_s + _GRACE_S), True
        elif not settled and all(rank.returned for rank in ranks):
            until_s, settled = now_s + _LEAVE_S, True


def _results(folder: Folder, ranks: list[RunningRank], timeout_s: float) -> list[Any]:
    """The results in rank order; raises RankFailed if a rank has none."""
    for rank in ranks:
        rank.output.show_rest()
    if all(rank.returned for rank in ranks):
        return [_result(folder, rank.rank) for rank in ranks]
    failed = [rank for rank in ranks if rank.failed]
    if not failed:
        failed = [rank for rank in ranks if not rank.returned]  # time was up
    returned = [rank.rank for rank in ranks if rank.returned]
    raise first_cause([rank.failure() for rank in failed], returned, timeout_s)


def _result(folder: Folder, rank: int) -> Any:
    try:
        return unpack(folder.of(rank, "result"))
    except Exception as error:
        raise RankFailed(
            rank,
            f"returned something that cannot be rebuilt here ({message_of(error)}): return numbers,"
            " tensors or plain containers of them",
        ) from error


# --- the record, for `course diagnose` --------------------------------------------------------


def _prepared(record: Path) -> dict[str, str]:
    """Remove the files of an earlier launch from the folder; the variables that select it.

    Raises OSError if the folder cannot be created.
    """
    record.mkdir(parents=True, exist_ok=True)
    for path in record.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
    return {FOLDER_VARIABLE: str(record.absolute())}


def _write_ends(record: Path, folder: Folder, ranks: list[RunningRank], timeout_s: float) -> None:
    """Write how each rank ended to launch.json, and the last lines that it printed to its log."""
    for rank in ranks:
        rank.output.show_rest()  # first, since `last_lines` moves the read position
    launch = {
        "launch": launch_name(str(folder.store)),
        "timeout_s": timeout_s,
        "ends": [
            {
                "rank": rank.rank,
                "exit_code": rank.exit_code,  # None if it was still running when the launch ended
                "returned": rank.returned,
                "reason": rank.failure().reason if rank.failed else "",
                "stack": folder.text(rank.rank, "stack"),
            }
            for rank in ranks
        ],
    }
    write_json(record / "launch.json", launch)
    for rank in ranks:
        for path in (record / f"rank{rank.rank}.{kind}" for kind in ("crash", "term")):
            if path.exists() and not path.stat().st_size:
                path.unlink()
        words = rank.output.last_lines(_LAST_LINES)
        if words:
            (record / f"rank{rank.rank}.log").write_text(words + os.linesep, encoding="utf-8")
