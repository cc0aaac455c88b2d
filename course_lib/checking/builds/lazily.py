"""torch and modules that load it, for builds: they are imported when something of them is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Later:
    """A module that is imported when something of it is asked for."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # it travels to ranks
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


def later(module: str) -> Any:
    """A module that loads torch, to be named at the head of a build."""
    return _Later(module)


if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn
else:
    torch, dist, nn = map(_Later, ("torch", "torch.distributed", "torch.nn"))

__all__ = ["dist", "later", "nn", "torch"]
