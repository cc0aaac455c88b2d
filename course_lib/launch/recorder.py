"""Writes this rank's page while it runs, so that a recent one exists however the rank ends.

A thread samples the main thread's stack 50 times a second and writes the page 4 times a second,
more often while that is cheap, since a rank may die just after its start. `group.init` and `import
course_lib.record` start it if the environment names a folder; otherwise it costs nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import hashlib
import json
import linecache
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from course_lib.launch import flight
from course_lib.launch.errors import explain
from course_lib.launch.job import ATTEMPT_VARIABLE, FOLDER_VARIABLE, STORE_VARIABLE
from course_lib.launch.page import Line, Page, Stack, call_of

_SAMPLE_S = 0.02
_SAMPLES_PER_PAGE = 12
_PAGE_SHARE = 0.05  # the fraction of the time that extra pages may take
_STACKS = 12  # the most frequent ones that a page has
_DEPTH = 30  # lines of a stack
_ERROR_CHARACTERS = 4000
_ENDING = (signal.SIGTERM, signal.SIGINT)  # the signals by which a launcher ends its ranks

# File, line and function of each frame, innermost first.
_Key = tuple[tuple[str, int, str], ...]

_recorder: _Recorder | None = None


def start(rank: int = -1, world: int = 0) -> bool:
    """Start recording if the environment names a folder; return whether it does.

    Without `rank`, it is read from the process group once that is initialized.
    """
    global _recorder
    if (folder := os.environ.get(FOLDER_VARIABLE)) and _recorder is None:
        flight.switch_on()
        flight.watch()
        _recorder = _Recorder(Path(folder), rank, world)
        _recorder.start()
        _follow_the_end()
    return bool(folder)


def joined() -> None:
    """Record that the rank has joined its process group."""
    if _recorder:
        _recorder.note("running")


def step(number: int, of: int) -> None:
    """Record that update `number` of `of` is done."""
    if _recorder:
        _recorder.step = (number, of)


def failed(error: BaseException) -> None:
    """Write the last page of a rank that raised `error`."""
    if _recorder:
        for _ in range(2):  # a DataLoader that loses a worker raises in whatever runs just then
            with contextlib.suppress(Exception):
                _recorder.fail(error)
                return


def returned() -> None:
    """Write the last page of a rank whose work is done; it may join a group again."""
    global _recorder
    if _recorder and _recorder.state == "running":
        with contextlib.suppress(Exception):
            _recorder.close("returned")
        _recorder = None


def _follow_the_end() -> None:
    """Hook every way in which Python ends a process (excepthook, sys.exit, os._exit, atexit)."""
    hook, leave_python, leave_at_once = sys.excepthook, sys.exit, os._exit
    if hasattr(hook, "__wrapped__"):
        return

    @wraps(hook)
    def raised(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt) and _recorder:
            _recorder.written = True  # interrupted from outside: keep the page from before
        failed(error)
        hook(kind, error, trace)

    @wraps(leave_python)
    def leave(code: Any = None) -> NoReturn:
        if _recorder and threading.current_thread() is threading.main_thread():
            called = f"called sys.exit({code!r})"[:200]
            _recorder.leaving = (called, _key(sys._getframe(1)), time.time_ns())
        leave_python(code)

    @wraps(leave_at_once)
    def leave_now(status: int) -> NoReturn:
        if _recorder:
            state, called = "failed" if status else "returned", f"os._exit({status})"
            reason, error = f"called {called}", called if status else ""
            with contextlib.suppress(Exception):
                _recorder.close(state, _key(sys._getframe(1)), reason=reason, error=error)
        leave_at_once(status)

    sys.excepthook, sys.exit, os._exit = raised, leave, leave_now
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_in_child)


def _at_exit() -> None:
    """Write the last page of a process that exits normally, or by its last sys.exit.

    A SystemExit may have been caught: then collectives follow it, and it is not the reason.
    """
    if _recorder:
        words, key, at_ns = _recorder.leaving
        called = words if words and flight.last_ns() < at_ns else ""
        with contextlib.suppress(Exception):
            _recorder.close("returned", key if called else (), reason=called)


def _in_child() -> None:
    """Stop recording in a forked child, which is not a rank."""
    global _recorder
    if _recorder:
        _recorder = None
        faulthandler.disable()
        for number in _ENDING:
            faulthandler.unregister(number)


def launch_name(store: str = "") -> str:
    """An id shared by all ranks of a launch; each restart by torchrun gets another one."""
    run_id = store or os.environ.get(STORE_VARIABLE) or os.environ.get("TORCHELASTIC_RUN_ID", "")
    if not run_id:
        run_id = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    attempt = "0" if store else os.environ.get(ATTEMPT_VARIABLE, "0")
    return hashlib.sha256(f"{run_id} {attempt}".encode()).hexdigest()[:12]


class _Recorder(threading.Thread):
    def __init__(self, folder: Path, rank: int, world: int) -> None:
        super().__init__(name="course_recorder", daemon=True)
        self.state, self.step = "joining", (0, 0)
        # The last sys.exit: its text, its stack, and when, on the clock of `time.time_ns()`.
        self.leaving: tuple[str, _Key, int] = ("", (), 0)
        self._folder, self._rank, self._world = folder, rank, world
        self._main = threading.main_thread().ident or 0
        self._launch = launch_name()
        self._writing = threading.RLock()  # reentrant: a signal handler may exit during a write
        self._over, self.written = threading.Event(), False  # no more samples; no more pages
        self._since: Counter[_Key] = Counter()
        self._all: Counter[_Key] = Counter()
        self._called_s, self._step = 0.0, self.step
        self._moved_s = time.time()
        self._term_descriptor, self._sigterm_handler = -1, signal.getsignal(signal.SIGTERM)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if rank >= 0:
            self._open()

    def _open(self) -> None:
        """Have faulthandler dump the stack on a crash or signal, which leave no time for a page."""
        with contextlib.suppress(OSError):
            mine = self._folder / f"rank{self._rank}"
            mine.with_suffix(".json").unlink(missing_ok=True)  # of an earlier launch
            self._crash = open(mine.with_suffix(".crash"), "w")  # noqa: SIM115
            faulthandler.enable(self._crash)
            self._term = open(mine.with_suffix(".term"), "w")  # noqa: SIM115
            self._term_descriptor = self._term.fileno()
            if hasattr(faulthandler, "register"):
                for number in _ENDING:
                    faulthandler.register(number, self._term, chain=True)

    def _was_signalled(self) -> bool:
        return self._term_descriptor >= 0 and os.fstat(self._term_descriptor).st_size > 0

    def _met(self) -> bool:
        """Read rank and world size from the process group; True only when it has just appeared."""
        if self.state != "joining" or (joined := flight.rank_and_world()) is None:
            return False
        before, (self._rank, self._world) = self._rank, joined
        if before < 0:
            self._open()
        self.state = "running"
        return True

    def run(self) -> None:
        samples, written_s, took_s = 0, 0.0, 0.0
        while not self._over.is_set():
            idle_s = time.monotonic() - written_s
            if self._met() or samples % _SAMPLES_PER_PAGE == 0 or idle_s > took_s / _PAGE_SHARE:
                start_s = time.thread_time()
                with self._writing, contextlib.suppress(Exception):  # must never break the program
                    if not self.written:
                        self._write(sys._current_frames().get(self._main))
                written_s, took_s = time.monotonic(), time.thread_time() - start_s
            self._sample()
            samples += 1
            self._over.wait(_SAMPLE_S)

    def note(self, state: str) -> None:
        """Set the state and write a page at once; called from the main thread."""
        with self._writing, contextlib.suppress(Exception):
            self.state = state
            self._write(sys._current_frames().get(self._main))

    def close(
        self, state: str, key: _Key = (), frame: FrameType | None = None, **more: str
    ) -> None:
        """Write the last page; nothing is written after it."""
        with self._writing:
            if not self.written and not self._was_signalled():
                self._over.set()
                self.state = state
                self._write(frame, key=key, **more)
                self.written = True

    def fail(self, error: BaseException) -> None:
        """Write the last page with the traceback and the text of an exception."""
        walked = list(traceback.walk_tb(error.__traceback__))[::-1]
        key = [(f.f_code.co_filename, number, f.f_code.co_name) for f, number in walked]
        named = "".join(traceback.format_exception_only(error)).strip()
        words = {"error": named, "reason": explain(error)}
        self.close(
            "failed", tuple(key), walked[0][0] if walked else None,
            **{name: text[:_ERROR_CHARACTERS] for name, text in words.items()},
        )  # fmt: skip

    def _sample(self) -> None:
        if frame := sys._current_frames().get(self._main):
            key = _key(frame)
            self._since[key] += 1
            self._all[key] += 1

    def _write(self, frame: FrameType | None, key: _Key | None = None, **more: str) -> None:
        if self._rank < 0 or (self.state == "running" and self._was_signalled()):
            return
        # Before the process group exists, it is too early to ask torch.
        joining = self.state == "joining"
        entries = [] if joining else [e for e in flight.entries() if not e.get("is_p2p")]
        calls = tuple(call_of(entry, linecache.getline) for entry in entries)
        now_s = time.time()
        called_s = max(calls[-1].at_s if calls else 0.0, flight.messaged_s())
        if (called_s, self.step) != (self._called_s, self._step):
            # For a call, use its own time: torch's first dump may come seconds after it.
            self._moved_s = called_s if called_s != self._called_s else now_s
            self._called_s, self._step = called_s, self.step
            self._since.clear()
        message, peer = flight.message(frame)
        page = Page(
            rank=self._rank,
            world=self._world,
            launch=self._launch,
            state=self.state,
            at_s=now_s,
            still_s=round(max(0.0, now_s - self._moved_s), 3),
            step=self.step[0],
            steps=self.step[1],
            message=message,
            peer=peer,
            hears=self._term_descriptor >= 0
            and signal.getsignal(signal.SIGTERM) == self._sigterm_handler,
            stack=_lines(key if key is not None else _key(frame)),
            since=_stacks(self._since),
            all=_stacks(self._all),
            groups={} if joining else flight.groups(),
            calls=calls,
            **more,
        )
        write_json(self._folder / f"rank{self._rank}.json", asdict(page))


def write_json(path: Path, data: object) -> None:
    """Write `data` as JSON atomically: readers see the old file or the new one."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(data, indent=1), encoding="utf-8")
    os.replace(unfinished, path)


def _key(frame: FrameType | None) -> _Key:
    lines: list[tuple[str, int, str]] = []
    while frame is not None and len(lines) < _DEPTH:
        lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(lines)


def _lines(key: _Key) -> tuple[Line, ...]:
    """A stack with the source text of its lines, innermost line last."""
    return tuple(
        Line(file, line or 0, function, linecache.getline(file, line or 0).strip())
        for file, line, function in key[:_DEPTH][::-1]
    )


def _stacks(counted: Counter[_Key]) -> tuple[Stack, ...]:
    return tuple(Stack(count, _lines(key)) for key, count in counted.most_common(_STACKS))
