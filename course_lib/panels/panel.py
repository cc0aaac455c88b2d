"""The decorator that makes a panel of a function from values to a View."""

import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec

from course_lib.panels.model import Rows, View

if sys.platform == "emscripten":  # a page of the site: there is no kernel, and no ipywidgets
    from course_lib.panels.model import Model as Panel
else:
    from course_lib.panels.widget import Panel

__all__ = ["Panel", "Rows", "View", "panel"]

P = ParamSpec("P")


def panel(view: Callable[P, View]) -> Callable[P, Panel]:
    """Decorator: turns a function from values to a View into one that builds a Panel.

    The default of each parameter is its control, and the panel shows them in that order. The new
    function takes starting values, which default to those of the controls.
    """
    signature = inspect.signature(view)
    controls = {name: each.default for name, each in signature.parameters.items()}
    shown = [
        each.replace(default=controls[name].value) for name, each in signature.parameters.items()
    ]
    signature = signature.replace(parameters=shown, return_annotation=Panel)
    kept = lru_cache(maxsize=64)(view)  # a slider often returns to where it was

    @wraps(view)
    def build(*args: P.args, **values: P.kwargs) -> Panel:
        try:
            given = signature.bind(*args, **values)
        except TypeError as wrong:
            raise TypeError(f"{view.__name__}() {wrong}") from None
        given.apply_defaults()
        started = {name: controls[name].at(value) for name, value in given.arguments.items()}
        return Panel(started, kept)

    build.__annotations__ = {**view.__annotations__, "return": Panel}
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build
