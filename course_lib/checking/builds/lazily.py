"""Lazy proxies for torch and modules that import it, for builds: imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


class _Later:
    """A proxy that imports the module when an attribute is first accessed."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pickling, to send it to ranks, looks up special methods
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


def later(module: str) -> Any:
    """A lazy proxy for a module that imports torch, for the top of a build's file."""
    return _Later(module)


if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import nn
else:
    torch, dist, nn = map(_Later, ("torch", "torch.distributed", "torch.nn"))

__all__ = ["dist", "later", "nn", "torch"]
