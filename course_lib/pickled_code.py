"""Functions of a cell or a file as bytes, by cloudpickle, that still know where they stand.

cloudpickle 3.1.3 writes "<dynamic-code>" where a function's file was. A traceback of a rank could
then show no line of the learner's, and nobody could tell the learner's code from the course's.
"""

import io
import sys
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with the file of each piece of code, and with modules of compiled code."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_in, (value.co_filename, *self.dispatch_table[CodeType](value))
        if isinstance(value, ModuleType) and _only_its_parent_has(value):
            return _part_of_its_parent, (value.__name__,)
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    """The value as bytes, for `pickle.loads`. Raises whatever pickling raises."""
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _code_in(filename: str, make: type[CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=filename)


def _only_its_parent_has(module: ModuleType) -> bool:
    """Whether it cannot be imported, like torch._C._functions, which torch's decorators name."""
    parent, _, own = module.__name__.rpartition(".")
    missing = module.__name__ not in sys.modules
    return missing and getattr(sys.modules.get(parent), own, None) is module


def _part_of_its_parent(name: str) -> Any:
    parent, _, own = name.rpartition(".")
    return getattr(import_module(parent), own)
