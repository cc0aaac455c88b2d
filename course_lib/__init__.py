"""How large models are trained on many accelerators: predict, measure, explain the gap.

`import course_lib` is light: torch and ipywidgets load when they are first used.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from course_lib import short_errors

__version__ = "0.1.0"

# What every notebook uses, and the module that has it.
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

# Between two operations, OpenMP's threads would spin and keep the cores from other programs: four
# fp8 demos at once on two cores ended after their limit of 120 s, and sleeping between operations
# after 25 s. Ranks and the kernels of `course lab` inherit this, and torch reads it when it loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

short_errors.install()


def __getattr__(name: str) -> Any:
    """Import a sub-package, or one of the functions every notebook uses, on first use."""
    if name in _FUNCTIONS:
        return getattr(import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    packages = [module.name for module in iter_modules(__path__) if module.ispkg]
    return sorted([*globals(), *packages, *_FUNCTIONS])
