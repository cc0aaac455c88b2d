"""On a rank of a check: the learner's work, and a diary of its calls.

A rank that waits endlessly, or is killed, leaves no answer, so each rank writes its latest call
into a file, and below it the line of the learner's that made it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.own_work import Own, calls, is_learners, line_of
from course_lib.measure.operators import Listener
from course_lib.measure.wire import log_wire

_WIDTH = 300
_diary = {"file": -1, "entry": 0}  # of this rank


def followed(
    work: Callable[..., Any], args: tuple[Any, ...], folder: str, own: Own | None
) -> Outcome:
    """On a rank: do the work and write down every call."""
    diary = os.open(Path(folder) / os.environ["RANK"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def heard(operator: Any, args: tuple[Any, ...], _options: Any, _result: Any) -> None:
        if words := _words(str(operator).rpartition(".")[0], args):
            os.pwrite(diary, f"{words}\n{_line()}".ljust(_WIDTH).encode()[:_WIDTH], 0)

    with log_wire() as wire, Listener(heard, inside_dtensors=True), calls(own) as borrowed:
        _diary.update(file=diary, entry=0)
        value = work(*args)
    os.pwrite(diary, "has returned".ljust(_WIDTH).encode(), 0)
    return Outcome(value, wire, frozenset(borrowed))


def meet(done: str) -> None:
    """Wait here for all ranks, by no collective: `done`, such as "has done f", is the diary's last.

    So a rank that has left out a collective does not take part in the next one instead.
    """
    store, note = distributed_c10d._get_default_store(), f"{_diary['entry']} {done}"
    os.pwrite(_diary["file"], done.ljust(_WIDTH).encode(), 0)
    _diary["entry"] += 1
    if store.add(note, 1) == dist.get_world_size():
        store.set(f"{note}: all", "")
    store.wait([f"{note}: all"])


def _line() -> str:
    """The innermost line of the learner's that runs now, "" for none."""
    frame: Any = sys._getframe()
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else line_of(frame.f_code.co_filename, frame.f_lineno)


def _words(operator: str, args: tuple[Any, ...]) -> str:
    """What a call waits for, in words; "" for an operator that sends nothing."""
    room, _, call = operator.partition(".")
    if room not in ("c10d", "_c10d_functional"):
        return ""
    if call in ("send", "recv_"):
        verb = "sends to" if call == "send" else "waits for a message from"
        return f"{verb} rank {args[2]}"
    return f"is in {call.strip('_')}"
