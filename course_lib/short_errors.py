"""In a notebook, what the course refuses is a sentence and the learner's own line.

Installed in IPython alone. An error that is not raised by a `raise` of the course's own, such as a
bug of ours or of the learner's, keeps its whole traceback.
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
    """Shorten refusals where IPython runs and nobody else handles its exceptions."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc(_REFUSALS, _show)


def short(error: BaseException) -> list[str]:
    """The learner's line and the sentence; nothing if the course did not refuse this by itself."""
    steps = list(_steps(error.__traceback__))
    theirs = [step for step in steps if not _of_the_course(step)]
    if not theirs or theirs[-1] is steps[-1] or not _raises(steps[-1]):
        return []
    frame, number = theirs[-1].tb_frame, theirs[-1].tb_lineno
    if frame.f_globals.get("__name__") != "__main__":
        return []
    source = linecache.getline(frame.f_code.co_filename, number).strip()
    return [f"line {number} of your code:  {source}", f"{type(error).__name__}: {error}", _MORE]


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _of_the_course(step: TracebackType) -> bool:
    # By name, not by file: the __init__ of a dataclass has none.
    return str(step.tb_frame.f_globals.get("__name__")).partition(".")[0] == "course_lib"


def _raises(step: TracebackType) -> bool:
    """Whether it stopped at a `raise`, and not in something that it called."""
    return dis.opname[step.tb_frame.f_code.co_code[step.tb_lasti]] == "RAISE_VARARGS"


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """What IPython calls for an error of one of these kinds that reaches the end of a cell."""
    lines = short(error)
    if not lines or shell.InteractiveTB.mode == "Verbose":
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        return
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for %tb
    shell._showtraceback(kind, error, lines)
