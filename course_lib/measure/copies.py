"""Counts the bytes that a piece of code copies from one tensor to another."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_COPIES = (torch.ops.aten._to_copy, torch.ops.aten.clone)


def copied_bytes(step: Callable[[], object]) -> int:
    """Bytes of the copies that `step()` makes by `to` and `clone`.

    A `to` that finds the tensor where it should be copies nothing.
    """
    with _Listener() as listener:
        step()
    return listener.total


class _Listener(TorchDispatchMode):
    """Sees each operator that torch dispatches in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _COPIES:
            self.total += result.nbytes
        return result
