"""The arithmetic of training: numbers in, frozen dataclasses out. Standard library only.

The planner alone uses numpy, and loads it when it is asked for a plan. Each module loads when it is
first used: a panel that formats bytes does not wait for the schedules of pipelines.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "activation_terms",
    "activations",
    "batching",
    "breakdown",
    "bubble",
    "budget",
    "collectives",
    "communication",
    "fitting",
    "flops",
    "hardware",
    "layout",
    "memory",
    "memory_report",
    "models",
    "parameter_count",
    "pipeline",
    "planner",
    "recipe",
    "recovery",
    "roofline",
    "schedules",
    "shape",
    "sparse",
    "stagetime",
    "states",
    "steptime",
    "traffic",
    "units",
    "validation",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of the theory on first use."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
