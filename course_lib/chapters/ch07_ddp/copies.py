"""Counts the bytes that code copies from one tensor to another."""

from collections.abc import Callable
from typing import Any

import torch

from course_lib.measure.wire import Listener

_COPIES = (torch.ops.aten._to_copy, torch.ops.aten.clone)


def copied_bytes(step: Callable[[], object]) -> int:
    """Bytes of the copies that `step()` makes with `to` and `clone`.

    A `to` that returns its tensor unchanged copies nothing.
    """
    total = 0

    def add(operator: Any, _args: Any, _options: Any, result: Any) -> None:
        nonlocal total
        if operator.overloadpacket in _COPIES:
            total += result.nbytes

    with Listener(add):
        step()
    return total
