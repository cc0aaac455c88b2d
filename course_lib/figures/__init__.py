"""Results of theory and of demos in, matplotlib figures out; no pyplot, no shared state.

Each public function of this folder that returns a `Picture` is a figure, such as `figures.timeline`:
figures are found by that type, and are listed nowhere.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import get_annotations, isclass, isfunction
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from course_lib.figures.picture import Picture as Picture
from course_lib.figures.sheet import Sheet as Sheet

_FIGURES: dict[str, Callable[..., Picture]] = {}


def _figures_of(module: str) -> Iterator[tuple[str, Callable[..., Picture]]]:
    for name, value in vars(import_module(module)).items():
        if isfunction(value) and value.__module__ == module and not name.startswith("_"):
            drawn = get_annotations(value, eval_str=True).get("return")
            if isclass(drawn) and Picture in drawn.__mro__:
                yield name, value


for _file in iter_modules(__path__):
    _FIGURES.update(_figures_of(f"{__name__}.{_file.name}"))
# A figure may have the name of its file: here `figures.timeline` is the figure.
globals().update(_FIGURES)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Picture]: ...


def __dir__() -> list[str]:
    return sorted(["Picture", "Sheet", *_FIGURES])
