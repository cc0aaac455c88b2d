"""On a rank of a check: the learner's work, and a diary of its calls.

A rank that waits endlessly leaves no answer, so each rank writes its latest call into a file.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.checking.builds.outcome import Outcome
from course_lib.checking.own_work import Own, calls
from course_lib.measure.operators import Listener
from course_lib.measure.wire import log_wire

_WIDTH = 100


def followed(
    work: Callable[..., Any], args: tuple[Any, ...], folder: str, own: Own | None
) -> Outcome:
    """On a rank: do the work and write down every call."""
    diary = os.open(Path(folder) / os.environ["RANK"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def heard(operator: Any, args: tuple[Any, ...], _options: Any, _result: Any) -> None:
        if words := _words(str(operator).rpartition(".")[0], args):
            os.pwrite(diary, words.ljust(_WIDTH).encode(), 0)

    with log_wire() as wire, Listener(heard, inside_dtensors=True), calls(own) as borrowed:
        value = work(*args)
    os.pwrite(diary, "has returned".ljust(_WIDTH).encode(), 0)
    return Outcome(value, wire, frozenset(borrowed))


def _words(operator: str, args: tuple[Any, ...]) -> str:
    """What a call waits for, in words; "" for an operator that sends nothing."""
    room, _, call = operator.partition(".")
    if room not in ("c10d", "_c10d_functional"):
        return ""
    if call in ("send", "recv_"):
        verb = "sends to" if call == "send" else "waits for a message from"
        return f"{verb} rank {args[2]}"
    return f"is in {call.strip('_')}"
