"""Sliders → theory → figure. Each function returns a panel to be named last in a cell.

`panels.memory` is the function `memory` of `memory_panel.py`: a panel is found by the name of its
file when it is first used, and is listed nowhere.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from course_lib.panels.panel import Panel as Panel

_ENDING = "_panel"


def _names() -> list[str]:
    files = [module.name for module in iter_modules(__path__)]
    return [name.removesuffix(_ENDING) for name in files if name.endswith(_ENDING)]


def __getattr__(name: str) -> Callable[..., Panel]:
    """The function that builds panel `name`."""
    if name not in _names():
        raise AttributeError(f"no panel {name!r}; the panels are {', '.join(_names())}")
    module = import_module(f"{__name__}.{name}{_ENDING}")
    return cast(Callable[..., Panel], getattr(module, name))


def __dir__() -> list[str]:
    return ["Panel", *_names()]
