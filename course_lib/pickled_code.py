"""Functions of a cell or a file as bytes, by cloudpickle, that still know where they stand.

cloudpickle 3.1.3 writes "<dynamic-code>" where a function's file was. A traceback of a rank could
then show no line of the learner's, and nobody could tell the learner's code from the course's.
"""

import io
from types import CodeType
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with the file of each piece of code."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_in, (value.co_filename, *self.dispatch_table[CodeType](value))
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    """The value as bytes, for `pickle.loads`. Raises whatever pickling raises."""
    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _code_in(filename: str, make: type[CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=filename)
