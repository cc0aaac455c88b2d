"""Tells the learner's own code from that of the library, and a build of theirs from the course's.

While a check runs, each call of the course's own functions and methods of that build is followed
back to who made it: the check itself, which compares with them, or the learner's code.
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
    """The last line of the learner's code that `error` came through, "" when there is none.

    Reads "line 3 of your code, `return samples // 0`".
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_learners(frame.filename):
            return line_of(frame.filename, frame.lineno or 0)
    return ""


def line_of(filename: str, number: int) -> str:
    """Where that is, and what stands there."""
    source = linecache.getline(filename, number).strip()
    return f"line {number} of your code" + (f", `{source}`" if source else "")


@cache
def is_learners(filename: str) -> bool:
    """Whether a file is neither of this library nor of an installed one."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [str(Path(__file__).parents[1]), *map(sysconfig.get_path, names)]
    return not filename.startswith(("<frozen", *(folder + os.sep for folder in folders)))


Own = Mapping[str, frozenset[str]]  # names of functions and classes by file
_LIBRARY = Path(__file__).parents[1]
_CHECKING = (str(_LIBRARY / "checking"), str(_LIBRARY / "chapters"))
_noted: ContextVar[set[str] | None] = ContextVar("noted", default=None)
_followed: ContextVar[Own | None] = ContextVar("followed", default=None)


def noted() -> AbstractContextManager[set[str]]:
    """Inside, the set gets the names of what is the course's own in builds that are checked."""
    return bound(_noted, set())


@contextmanager
def following(part: Part, answers: Sequence[Any]) -> Iterator[None]:
    """Inside, the learner's answers of a build are followed, here and on ranks of the check."""
    if _noted.get() is None:
        yield
        return
    own = {
        str(import_module(module).__file__): frozenset(names)
        for module, names in own_names(part).items()
    }
    with bound(_followed, own):
        note(_inherited(answers, own))
        with calls(own) as found:
            yield
        note(found)


def followed() -> Own | None:
    """What is followed at the moment, for ranks that a check starts."""
    return _followed.get()


def note(names: set[str]) -> None:
    """These are the course's own."""
    kept = _noted.get()
    if kept is not None:
        kept |= names


@contextmanager
def calls(own: Own | None) -> Iterator[set[str]]:
    """Inside, the set gets the names of what the learner's code calls."""
    found: set[str] = set()
    if own is None:
        yield found
        return

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_filename not in own:
            return
        name = frame.f_code.co_qualname.partition(".")[0]
        inside = frame.f_back is not None and frame.f_back.f_code.co_filename in own
        if name in own[frame.f_code.co_filename] and name not in found and not inside:
            found.update([name] if _is_asked_by_learner(frame) else ())

    before = sys.getprofile()
    sys.setprofile(entered)
    threading.setprofile(entered)
    try:
        yield found
    finally:
        threading.setprofile(None)
        sys.setprofile(before)


def _is_asked_by_learner(frame: FrameType) -> bool:
    """Whether the learner's code comes before the check's among those who called this."""
    caller = frame.f_back
    while caller and not caller.f_code.co_filename.startswith(_CHECKING):
        if is_learners(caller.f_code.co_filename):
            return True
        caller = caller.f_back
    return False


def _inherited(answers: Sequence[Any], own: Own) -> set[str]:
    """What answers are, inherit or have copied of the course's own."""
    classes = [one for answer in answers if isinstance(answer, type) for one in answer.__mro__]
    found = [vars(one).values() for one in classes]
    values = [*answers, *(value for its in found for value in its)]
    bare = (
        inspect.unwrap(getattr(one, "__func__", getattr(one, "fget", one)))
        for one in values
        if one is not None
    )
    codes = [one.__code__ for one in bare if isinstance(one, FunctionType)]
    names = ((code.co_filename, code.co_qualname.partition(".")[0]) for code in codes)
    return {name for file, name in names if name in own.get(file, ())}
