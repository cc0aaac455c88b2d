"""How large models are trained on many accelerators: predict, measure, explain the gap.

`import course_lib` is cheap: torch and ipywidgets are imported when they are first used.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from course_lib import short_errors

__version__ = "0.1.0"

# Functions that every notebook uses, and the module of each.
_FUNCTIONS = {
    "check": "checking",
    "hint": "checking",
    "race": "checking",
    "solution": "checking",
    "predict": "checking",
    "expect": "checking",
    "quiz": "checking",
    "show_source": "show",
    "style": "figures.paper",
    "recorded": "show",
}

# By default OpenMP's threads spin between two operations and keep the cores from other programs:
# four concurrent fp8 demos on two cores exceeded their limit of 120 s, and took 25 s with passive
# waiting. Ranks and the kernels of `course lab` inherit this; torch reads it at import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

short_errors.install()


def __getattr__(name: str) -> Any:
    """Import a subpackage, or a function that every notebook uses, on first access."""
    if name in _FUNCTIONS:
        return getattr(import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    packages = [module.name for module in iter_modules(__path__) if module.ispkg]
    return sorted([*globals(), *packages, *_FUNCTIONS])
