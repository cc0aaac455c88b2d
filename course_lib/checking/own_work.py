"""Distinguishes the learner's code from the library's, and their build from the course's version.

While a check runs, each call of the course's own version of that build is traced back to its
caller: the check itself, which compares with it, or the learner's code.
"""

import inspect
import linecache
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from course_lib.checking.exercises import bound
from course_lib.mine import Part, own_names


def learners_line(error: Exception) -> str:
    """The innermost line of the learner's code in the traceback of `error`; "" if there is none.

    For example "line 3 of your code, `return samples // 0`".
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_learners(frame.filename):
            return line_of(frame.filename, frame.lineno or 0)
    return ""


def line_of(filename: str, number: int) -> str:
    """A phrase with the line number and, if known, the source of that line."""
    source = linecache.getline(filename, number).strip()
    return f"line {number} of your code" + (f", `{source}`" if source else "")


@cache
def is_learners(filename: str) -> bool:
    """Whether a file belongs neither to this library nor to an installed package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [str(Path(__file__).parents[1]), *map(sysconfig.get_path, names)]
    return not filename.startswith(("<frozen", *(folder + os.sep for folder in folders)))


Own = Mapping[str, frozenset[str]]  # names of functions and classes by file
_LIBRARY = Path(__file__).parents[1]
_CHECKING = (str(_LIBRARY / "checking"), str(_LIBRARY / "chapters"))
_noted: ContextVar[set[str] | None] = ContextVar("noted", default=None)
_followed: ContextVar[Own | None] = ContextVar("followed", default=None)


def noted() -> AbstractContextManager[set[str]]:
    """Context manager: collect in a set the course's own names that checked builds use."""
    return bound(_noted, set())


@contextmanager
def following(part: Part, answers: Sequence[Any]) -> Iterator[None]:
    """Context manager: trace which of the course's names these answers use, also on ranks."""
    if _noted.get() is None:
        yield
        return
    own = {
        str(import_module(module).__file__): frozenset(names)
        for module, names in own_names(part).items()
    }
    with bound(_followed, own):
        note(_inherited(answers, own))
        with calls(own) as called:
            yield
        note(called)


def followed() -> Own | None:
    """The course's names that are traced at the moment, to be passed to ranks of a check."""
    return _followed.get()


def note(names: set[str]) -> None:
    """Record that the learner's code uses these names of the course."""
    kept = _noted.get()
    if kept is not None:
        kept |= names


@contextmanager
def calls(own: Own | None) -> Iterator[set[str]]:
    """Context manager: collect in a set which names in `own` the learner's code calls."""
    called: set[str] = set()
    if own is None:
        yield called
        return

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_filename not in own:
            return
        name = frame.f_code.co_qualname.partition(".")[0]
        inside = frame.f_back is not None and frame.f_back.f_code.co_filename in own
        if name in own[frame.f_code.co_filename] and name not in called and not inside:
            called.update([name] if _called_by_learner(frame) else ())

    before = sys.getprofile()
    sys.setprofile(entered)
    threading.setprofile(entered)
    try:
        yield called
    finally:
        threading.setprofile(None)
        sys.setprofile(before)


def _called_by_learner(frame: FrameType) -> bool:
    """Whether, going up the stack, the learner's code comes before the check's code."""
    caller = frame.f_back
    while caller and not caller.f_code.co_filename.startswith(_CHECKING):
        if is_learners(caller.f_code.co_filename):
            return True
        caller = caller.f_back
    return False


def _inherited(answers: Sequence[Any], own: Own) -> set[str]:
    """The course's names that answers are identical to, inherit from or have copied methods of."""
    classes = [one for answer in answers if isinstance(answer, type) for one in answer.__mro__]
    attributes = [vars(one).values() for one in classes]
    values = [*answers, *(value for group in attributes for value in group)]
    bare = (
        inspect.unwrap(getattr(one, "__func__", getattr(one, "fget", one)))
        for one in values
        if one is not None
    )
    codes = [one.__code__ for one in bare if isinstance(one, FunctionType)]
    names = ((code.co_filename, code.co_qualname.partition(".")[0]) for code in codes)
    return {name for file, name in names if name in own.get(file, ())}
