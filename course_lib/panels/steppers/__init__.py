"""Stories to walk through, step by step. Each function returns a stepper to name last in a cell.

Several stories share a module: for each of them a class, its `Story`, and a function that returns
a `Stepper` of it. `steppers.ring` is such a function: found in whichever module it is, and listed
nowhere. Their traces are told in `theory.stories`.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from course_lib.panels.stepper import Stepper as Stepper


def _found() -> dict[str, Callable[..., Stepper]]:
    """The functions of all modules here that return a Stepper, by name."""
    found: dict[str, Callable[..., Stepper]] = {}
    for name in [f"{__name__}.{module.name}" for module in iter_modules(__path__)]:
        for each, it in vars(import_module(name)).items():
            returns = getattr(it, "__annotations__", {}).get("return")
            if returns is Stepper and it.__module__ == name and not each.startswith("_"):
                found[each] = it
    return dict(sorted(found.items()))


_STEPPERS = _found()
globals().update(_STEPPERS)  # in the place of modules of the same name


def __getattr__(name: str) -> Any:
    """Only what is not found comes here."""
    raise AttributeError(f"no stepper {name!r}; the steppers are {', '.join(_STEPPERS)}")


def __dir__() -> list[str]:
    return ["Stepper", *_STEPPERS]
