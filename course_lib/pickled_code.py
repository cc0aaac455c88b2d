"""Pickles functions of cells or files with cloudpickle and keeps their file names.

cloudpickle 3.1.3 replaces a function's file name by "<dynamic-code>". A traceback of a rank could
then not show the learner's lines, nor could those be told from the course's.
"""

import io
import sys
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's Pickler; keeps code's file names and pickles submodules of C extensions."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_in, (value.co_filename, *self.dispatch_table[CodeType](value))
        if isinstance(value, ModuleType) and _is_attribute_only(value):
            return _attribute_of_parent, (value.__name__,)
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    """Pickle the value to bytes for `pickle.loads`. Raises whatever pickling raises."""
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _code_in(filename: str, make: type[CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=filename)


def _is_attribute_only(module: ModuleType) -> bool:
    """Whether it is an attribute of its parent but cannot be imported, like torch._C._functions."""
    parent, _, own = module.__name__.rpartition(".")
    missing = module.__name__ not in sys.modules
    return missing and getattr(sys.modules.get(parent), own, None) is module


def _attribute_of_parent(name: str) -> Any:
    parent, _, own = name.rpartition(".")
    return getattr(import_module(parent), own)
