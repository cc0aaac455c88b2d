"""A ledger of memory: go through the tensors that training keeps and add up their bytes."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each storage counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def ledger(model: nn.Module, optimizer: Any, batch: Iterable[Tensor] = ()) -> dict[str, int]:
    """Bytes by consumer: weights, gradients, optimizer, inputs and labels.

    `optimizer` has torch's `state`: a dict of named tensors for each parameter. Call it after
    `optimizer.step()`: optimizers make their state at the first step. Step counters (one number
    per tensor) are left out, as every published convention does.
    """
    parameters = list(model.parameters())
    states = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor) and name != "step"
    ]
    return {
        "weights": tensor_bytes(parameters),
        "gradients": tensor_bytes(p.grad for p in parameters if p.grad is not None),
        "optimizer": tensor_bytes(states),
        "inputs and labels": tensor_bytes(batch),
    }
