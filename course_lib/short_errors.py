"""Shortens the course's own errors in a notebook to a sentence and the learner's line.

Installed only in IPython. An error that does not come from a `raise` statement of the course, such
as a bug in the course or in the learner's code, keeps its full traceback.
"""

import dis
import linecache
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

_REFUSALS = (ValueError, TypeError)
_MORE = "(%tb shows the lines inside the course as well.)"


def install() -> None:
    """Install the handler in IPython, unless it has a custom exception handler already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc(_REFUSALS, _show)


def short(error: BaseException) -> list[str]:
    """The learner's line and the error's sentence; empty if no `raise` of the course raised it."""
    steps = list(_steps(error.__traceback__))
    callers = [step for step in steps if not _of_the_course(step)]
    if not callers or callers[-1] is steps[-1] or not _raises(steps[-1]):
        return []
    frame, number = callers[-1].tb_frame, callers[-1].tb_lineno
    if frame.f_globals.get("__name__") != "__main__":
        return []
    source = linecache.getline(frame.f_code.co_filename, number).strip()
    return [f"line {number} of your code:  {source}", f"{type(error).__name__}: {error}", _MORE]


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _of_the_course(step: TracebackType) -> bool:
    # By module name: the generated __init__ of a dataclass has no file.
    return str(step.tb_frame.f_globals.get("__name__")).partition(".")[0] == "course_lib"


def _raises(step: TracebackType) -> bool:
    """Whether this frame stopped at a `raise` statement, not inside a call."""
    return dis.opname[step.tb_frame.f_code.co_code[step.tb_lasti]] == "RAISE_VARARGS"


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """IPython's handler for an uncaught error of these kinds in a cell."""
    lines = short(error)
    if not lines or shell.InteractiveTB.mode == "Verbose":
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        return
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for %tb
    shell._showtraceback(kind, error, lines)
