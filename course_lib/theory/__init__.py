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
    "context",
    "experts",
    "fitting",
    "flops",
    "gather_timeline",
    "hardware",
    "layout",
    "memory",
    "memory_report",
    "mesh",
    "models",
    "overlap",
    "parameter_count",
    "pipeline",
    "planner",
    "recipe",
    "recovery",
    "ring_or_tree",
    "roofline",
    "schedules",
    "shape",
    "sparse",
    "stagetime",
    "states",
    "steptime",
    "tensor_parallel",
    "traffic",
    "units",
    "validation",
    "zero",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of the theory on first use."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
