"""Builds a model without memory, and later fills its weights one by one.

A model built under `torch.device("meta")` has shapes and no values. Here the
calls that would have filled it (normal_, uniform_, fill_, …) are written down,
to be replayed in the same order: the same random numbers, so the same weights.
Zhao et al. 2023, arXiv:2304.11277, section 4.1 (deferred initialization).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Model = TypeVar("Model", bound=nn.Module)


class Recording(TorchDispatchMode):
    """Writes down each operator that changes a tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Tensor, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:
            target, *others = args
            self.calls.append((func, target, others, kwargs or {}))
        return func(*args, **(kwargs or {}))


@dataclass
class Deferred:
    """A model on the meta device, and how to fill it."""

    model: Any
    calls: list[tuple[Any, Tensor, Any, Any]] = field(repr=False)
    random_state: Tensor = field(repr=False)  # before the first call

    def replay(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the model with its values, as soon as final.

        Only tensors between their first and their last call are in memory.
        """
        torch.set_rng_state(self.random_state)
        last = {call[1]: number for number, call in enumerate(self.calls)}
        values: dict[Tensor, Tensor] = {}
        for number, (func, target, others, options) in enumerate(self.calls):
            if target not in values:
                values[target] = torch.empty(target.shape, dtype=target.dtype)
            func(values[target], *others, **options)
            if last[target] == number:
                yield target, values.pop(target)


def defer(build: Callable[[], nn.Module]) -> Deferred:
    """Call `build()` on the meta device and write down its initialisation."""
    with torch.device("meta"), Recording() as recording:
        model = build()
    # Nothing was drawn on meta, so the generator is still where it started.
    return Deferred(model, recording.calls, torch.get_rng_state())
