"""Transfers answers from a submission to the grader: as files, unpickled there as data.

Data are numbers, texts and containers of them: unpickling these runs no code of the submission.
Functions and classes are unpickled by cloudpickle, which does. The submission reports its progress
and its answers through one pipe, in messages short enough to be written atomically.
"""

import io
import json
import os
import pickle
import select
import sys
import tempfile
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from course_lib.checking.exercises import Wrong
from course_lib.checking.helpers import plain

LARGEST_BYTES = 64 * 2**20
_DATA = {
    "builtins": {"Ellipsis", "complex", "set", "frozenset", "range", "bytearray"},
    "collections": {"OrderedDict", "Counter"},
    "fractions": {"Fraction"},
    "decimal": {"Decimal"},
}
_THEORY = "course_lib.theory."  # its results are frozen dataclasses of numbers, and enumerations


class TooLarge(Exception):
    """The answer has more bytes than allowed."""


def packed(answer: object, own: str = "") -> bytes:
    """Pickle the answer, including the code of modules in the folder `own`, if given.

    Raises TooLarge, or whatever pickling raises.
    """
    import cloudpickle

    from course_lib import pickled_code

    for module in list(sys.modules.values()) if own else ():
        if (getattr(module, "__file__", None) or "").startswith(own):
            cloudpickle.register_pickle_by_value(module)
    raw = pickled_code.dumps(_as_data(answer))
    if len(raw) > LARGEST_BYTES:
        raise TooLarge(f"it has {len(raw):,} bytes, where {LARGEST_BYTES:,} are allowed")
    return raw


def unpacked(raw: bytes, code_is_welcome: bool) -> Any:
    """Unpickle an answer. Raises Wrong if it has code where data is expected, or is broken."""
    try:
        return _DataUnpickler(raw).data()
    except _Code:
        if not code_is_welcome:
            wants = "wants numbers or texts, or lists, tuples or dicts of them"
            raise Wrong(f"{wants}, got something else") from None
    except Exception as error:
        raise _broken(error) from None
    try:
        return pickle.loads(raw)
    except Exception as error:
        raise _broken(error) from None


def _broken(error: Exception) -> Wrong:
    return Wrong(f"the answer cannot be rebuilt: {type(error).__name__}: {error}")


class _Code(Exception):
    """The pickle has more than data: unpickling it would run the submission's code."""


class _DataUnpickler(pickle.Unpickler):
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self._found: dict[type, dict[str, Any]] = {}

    def data(self) -> Any:
        """Unpickle the answer. Raises _Code if it is not only data."""
        loaded = self.load()
        # A pickle can also set attributes, even of a class.
        if any(dict(vars(kind)) != before for kind, before in self._found.items()):
            raise _Code
        return loaded

    def find_class(self, module: str, name: str) -> Any:
        if name in _DATA.get(module, ()) or (module.startswith(_THEORY) and "." not in name):
            found = super().find_class(module, name)
            if found is ...:
                return found
            if not module.startswith(_THEORY) or _is_record(found):
                self._found.setdefault(found, dict(vars(found)))
                return found
        raise _Code


def _is_record(found: Any) -> bool:
    return isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum))


def _as_data(answer: Any) -> Any:
    """Convert arrays and tensors to lists, recursively, and subclasses to builtin types."""
    answer = plain(answer)
    if isinstance(answer, list | tuple):
        return type(answer)(map(_as_data, answer))
    if isinstance(answer, dict):
        return {key: _as_data(value) for key, value in answer.items()}
    return answer


# The submission's environment variable with the folder of the grading.
GRADING = "COURSE_GRADING"
# In that folder: the pipe, the folder of answers, the submission's working directory.
PIPE, ANSWERS, WORK = "told", "answers", "work"
# The longest text of a message; an escaped character takes up to six bytes.
_LONGEST = getattr(select, "PIPE_BUF", 512) // 16


def is_graded() -> bool:
    """Whether this process is part of a submission that is being graded."""
    return GRADING in os.environ


def hand_over(exercise_id: str, answer: object) -> None:
    """Send an answer to the grader, which returns no verdict to this process."""
    folder = os.environ[GRADING]
    try:
        # The grader cannot import modules from the notebook's folder.
        raw = packed(answer, own=os.path.join(folder, WORK))
        handle, name = tempfile.mkstemp(dir=os.path.join(folder, ANSWERS))
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
    except Exception as error:
        tell(id=str(exercise_id), refused=f"{type(error).__name__}: {error}")
    else:
        tell(id=str(exercise_id), answer=os.path.basename(name))


def tell(**message: int | str) -> None:
    """Send one message to the supervisor, with texts cut so that the write is atomic."""
    short = {key: x[:_LONGEST] if isinstance(x, str) else x for key, x in message.items()}
    line = json.dumps(short).encode() + b"\n"
    pipe = os.open(os.path.join(os.environ[GRADING], PIPE), os.O_WRONLY)
    try:
        os.write(pipe, line)
    finally:
        os.close(pipe)
