"""Sliders → theory → figure. Each function returns a panel to be named last in a cell.

`panels.memory` is the function `memory` of `memory_panel.py`: a panel is found by the name of its
file when it is first used, and is listed nowhere. Stories of several steps are in
`panels.steppers`.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from course_lib.panels.panel import Panel as Panel

_ENDING = "_panel"


def __getattr__(name: str) -> Callable[..., Panel]:
    """The function that builds panel `name`. Raises AttributeError for another name."""
    known = __dir__()[1:]
    if name not in known:
        raise AttributeError(f"no panel {name!r}; the panels are {', '.join(known)}")
    build: Any = getattr(import_module(f"{__name__}.{name}{_ENDING}"), name)
    globals()[name] = build
    return build  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    files = [module.name for module in iter_modules(__path__)]
    return ["Panel", *(name.removesuffix(_ENDING) for name in files if name.endswith(_ENDING))]
