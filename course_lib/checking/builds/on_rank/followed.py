"""On a rank of a check: the learner's work, and a diary of its calls.

A rank that waits endlessly, or is killed, leaves no answer, so each rank writes its latest call
into a file, and below it the line of the learner's that made it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.learners_code import is_learners, line_of
from course_lib.measure.operators import Listener
from course_lib.measure.wire import log_wire

_WIDTH = 300


def followed(work: Callable[..., Any], args: tuple[Any, ...], folder: str) -> Outcome:
    """On a rank: do the work and write down every call."""
    diary = os.open(Path(folder) / os.environ["RANK"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def heard(operator: Any, args: tuple[Any, ...], _options: Any, _result: Any) -> None:
        if words := _words(str(operator).rpartition(".")[0], args):
            os.pwrite(diary, f"{words}\n{_line()}".ljust(_WIDTH).encode()[:_WIDTH], 0)

    with log_wire() as wire, Listener(heard, inside_dtensors=True):
        value = work(*args)
    os.pwrite(diary, "has returned".ljust(_WIDTH).encode(), 0)
    return Outcome(value, wire)


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
