"""Stories to walk through, step by step. Each function returns a stepper to name last in a cell.

`steppers.ring` is the function `ring` of `ring.py`: found by the name of its file when it is first
used, and listed nowhere.
"""

from collections.abc import Callable
from typing import cast

from course_lib.panels.finding import names, one
from course_lib.panels.stepper import Stepper as Stepper


def __getattr__(name: str) -> Callable[..., Stepper]:
    """The function that builds stepper `name`."""
    function = cast(Callable[..., Stepper], one(__name__, __path__, name))
    globals()[name] = function  # the import has left the module of that name there
    return function


def __dir__() -> list[str]:
    return ["Stepper", *names(__path__)]
