"""Keeps this rank's page while it runs, so that the last one is there however the rank ends.

A thread looks at the main thread 50 times a second and writes the page four times a second. It is
started by `group.init` where the environment names a folder, and costs nothing otherwise.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import linecache
import os
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

from course_lib.diagnosing.entries import call_of
from course_lib.diagnosing.page import Call, Line, Page, Stack
from course_lib.launch import flight
from course_lib.launch.explain import explain
from course_lib.launch.variables import ATTEMPT_VARIABLE, FOLDER_VARIABLE, STORE_VARIABLE

_LOOK_S = 0.02
_LOOKS_A_PAGE = 12
_STACKS = 12  # kept of the most frequent
_DEPTH = 30  # lines of a stack
_ERROR_CHARACTERS = 4000
_C10D = "distributed_c10d.py"
_MESSAGES = ("send", "recv", "isend", "irecv")

# File, line and function of each frame, the innermost first.
_Key = tuple[tuple[str, int, str], ...]

_recorder: _Recorder | None = None


def start(rank: int, world: int) -> None:
    """Begin this rank's page, if a folder is named; to be called before it joins the others."""
    global _recorder
    if (folder := os.environ.get(FOLDER_VARIABLE)) and _recorder is None:
        flight.switch_on()
        _recorder = _Recorder(Path(folder), rank, world)
        _recorder.start()


def joined() -> None:
    """The rank has met the others."""
    if _recorder:
        _recorder.note("running")


def step(number: int, of: int) -> None:
    """Update `number` of `of` is done."""
    if _recorder:
        _recorder.step = (number, of)


def failed(error: BaseException) -> None:
    """The last page of a rank that raised."""
    if _recorder:
        for _ in range(2):  # a DataLoader that loses a worker raises in whatever runs just then
            with contextlib.suppress(Exception):
                _recorder.fail(error)
                return


def returned() -> None:
    """The last page of a rank that has done its part; it may join a group again."""
    global _recorder
    if _recorder and _recorder.state == "running":
        _recorder.close("returned")
        _recorder = None


def launch_name(store: str = "") -> str:
    """A name that the ranks of one launch, and of one attempt, have in common."""
    met = store or os.environ.get(STORE_VARIABLE) or os.environ.get("TORCHELASTIC_RUN_ID", "")
    if not met:
        met = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    attempt = "0" if store else os.environ.get(ATTEMPT_VARIABLE, "0")
    return hashlib.sha256(f"{met} {attempt}".encode()).hexdigest()[:12]


class _Recorder(threading.Thread):
    def __init__(self, folder: Path, rank: int, world: int) -> None:
        super().__init__(name="course_recorder", daemon=True)
        self.state, self.step = "joining", (0, 0)
        self._folder, self._rank, self._world = folder, rank, world
        self._main = threading.main_thread().ident or 0
        self._launch = launch_name()
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._since: Counter[_Key] = Counter()
        self._all: Counter[_Key] = Counter()
        self._called_s, self._step = 0.0, self.step
        self._moved_s = time.time()
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            # What aborts the process leaves no time for a page; this needs no Python.
            self._crash = open(folder / f"rank{rank}.crash", "w")  # noqa: SIM115
            faulthandler.enable(self._crash)

    def run(self) -> None:
        looks = 0
        while not self._over.is_set():
            if looks % _LOOKS_A_PAGE == 0:
                with self._writing, contextlib.suppress(Exception):  # it must break nothing
                    if not self._over.is_set():
                        self._write(sys._current_frames().get(self._main))
            self._look()
            looks += 1
            self._over.wait(_LOOK_S)

    def note(self, state: str) -> None:
        """Write a page now, from the main thread."""
        with self._writing, contextlib.suppress(Exception):
            self.state = state
            self._write(sys._current_frames().get(self._main))

    def close(self, state: str) -> None:
        """Write the last page: nothing that happens later changes it."""
        with self._writing, contextlib.suppress(Exception):
            self._over.set()
            self.state = state
            self._write(None)

    def fail(self, error: BaseException) -> None:
        """Write where the exception was raised, and what it says."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        lines = [number for _, number in traceback.walk_tb(error.__traceback__)]
        named = "".join(traceback.format_exception_only(error)).strip()
        with self._writing:
            self._over.set()
            self.state = "failed"
            key = tuple(
                (frame.f_code.co_filename, line, frame.f_code.co_name)
                for frame, line in zip(frames[::-1], lines[::-1], strict=True)
            )
            self._write(
                frames[-1] if frames else None,
                key=key,
                error=named[:_ERROR_CHARACTERS],
                reason=explain(error)[:_ERROR_CHARACTERS],
            )

    def _look(self) -> None:
        if frame := sys._current_frames().get(self._main):
            key = _key(frame)
            self._since[key] += 1
            self._all[key] += 1

    def _write(self, frame: FrameType | None, key: _Key | None = None, **more: str) -> None:
        calls = self._calls()
        now_s, called_s = time.time(), calls[-1].at_s if calls else 0.0
        if (called_s, self.step) != (self._called_s, self._step):
            # Of a call the time is known; torch's first dump may come seconds after it.
            self._moved_s = called_s if called_s != self._called_s else now_s
            self._called_s, self._step = called_s, self.step
            self._since.clear()
        message, peer = _message(frame)
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
            stack=_lines(key if key is not None else _key(frame)),
            since=_stacks(self._since),
            all=_stacks(self._all),
            groups=self._groups(),
            calls=calls,
            **more,
        )
        write_json(self._folder / f"rank{self._rank}.json", page.as_json())

    def _calls(self) -> tuple[Call, ...]:
        if self.state == "joining":
            return ()  # asking earlier than the first collective would be too early for torch
        entries = [entry for entry in flight.entries() if not entry.get("is_p2p")]
        return tuple(call_of(entry, linecache.getline) for entry in entries)

    def _groups(self) -> dict[str, tuple[int, ...]]:
        if self.state == "joining":
            return {}
        return {name: tuple(ranks) for name, ranks in flight.groups().items()}


def write_json(path: Path, data: object) -> None:
    """Write it in one go, so that nobody reads half of it."""
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
    """A stack with its source, the innermost line last."""
    return tuple(
        Line(file, line or 0, function, linecache.getline(file, line or 0).strip())
        for file, line, function in key[:_DEPTH][::-1]
    )


def _stacks(counted: Counter[_Key]) -> tuple[Stack, ...]:
    return tuple(Stack(count, _lines(key)) for key, count in counted.most_common(_STACKS))


def _message(frame: FrameType | None) -> tuple[str, int]:
    """ "recv" and the rank that the main thread receives from just now, or "send"; "" and -1."""
    for _ in range(_DEPTH):
        if frame is None:
            break
        name = frame.f_code.co_name
        if name in _MESSAGES and frame.f_code.co_filename.endswith(_C10D):
            names = ("dst", "group_dst") if name.endswith("send") else ("src", "group_src")
            peers = (frame.f_locals.get(each) for each in names)
            peer = next((each for each in peers if isinstance(each, int)), -1)
            return name, peer
        frame = frame.f_back
    return "", -1
