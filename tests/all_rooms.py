"""What all rooms offer, by name: the library's, and those of all chapters."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from course_lib import chapters
from course_lib import panels as of_all
from course_lib.panels import Panel, Stepper


def functions(modules: list[ModuleType], kind: type) -> dict[str, Callable[..., Any]]:
    """The functions of `modules` that return `kind`."""
    found = (value for module in modules for value in vars(module).values())
    return {
        value.__name__: value
        for value in found
        if getattr(value, "__annotations__", {}).get("return") is kind
        and not value.__name__.startswith("_")
    }


def _of(file: str, kind: type, *others: ModuleType) -> SimpleNamespace:
    modules = [import_module(name) for name in chapters.files(file)]
    return SimpleNamespace(**dict(sorted(functions([*others, *modules], kind).items())))


panels, steppers = _of("panels.py", Panel, of_all), _of("steppers.py", Stepper)


def beside(name: str) -> ModuleType | None:
    """A module that one chapter's tests have, such as "wrong_ring" or "mistakes_ch06"."""
    for path in Path(__file__).parent.glob(f"chapters/*/{name}.py"):
        return import_module(f"tests.chapters.{path.parent.name}.{name}")
    return None
