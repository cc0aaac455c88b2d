"""Sliders → theory → figure. Each function returns a panel to be named last in a cell.

`panels.memory` is the function `memory` of `memory_panel.py`: a panel is found by the name of its
file when it is first used, and is listed nowhere. Stories of several steps are in
`panels.steppers`.
"""

from collections.abc import Callable
from typing import cast

from course_lib.panels.finding import names, one
from course_lib.panels.panel import Panel as Panel

_ENDING = "_panel"


def __getattr__(name: str) -> Callable[..., Panel]:
    """The function that builds panel `name`."""
    return cast(Callable[..., Panel], one(__name__, __path__, name, _ENDING))


def __dir__() -> list[str]:
    return ["Panel", *names(__path__, _ENDING)]
