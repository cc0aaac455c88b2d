"""Programs, one per technique: run from a cell, by `course demo`, `python -m`, or torchrun."""

from importlib import import_module
from types import ModuleType
from typing import Any

from course_lib import launch
from course_lib.theory.validation import choice

DEMOS = {
    "samples": "which samples each rank sees: DataLoader and DistributedSampler",
    "ddp": "DDP training with gradient accumulation, proven equal to one process",
}


def load(name: str) -> ModuleType:
    """The module of demo `name`; ValueError with the nearest name for an unknown one."""
    choice("demo", name, DEMOS)
    return import_module(f"{__name__}.{name}")


def run(
    name: str, ranks: int = 2, timeout_s: float = 120.0, stream: bool = True, **options: Any
) -> Any:
    """Run demo `name` on `ranks` processes and return rank 0's result.

    `options` are the fields of the demo's Options. Raises ValueError for a bad option and
    launch.RankFailed when a rank fails or the time limit is reached.
    """
    module = load(name)
    settings = module.Options(**options)
    return launch.run(module.main, settings, ranks=ranks, timeout_s=timeout_s, stream=stream)[0]
