"""A ledger of memory: walk over the tensors and add up their bytes."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from course_lib.measure.peak import tensor_bytes


def ledger(
    model: nn.Module, optimizer: Any, batch: Iterable[Tensor] = ()
) -> dict[str, int]:
    """Bytes by consumer: weights, gradients, optimizer, inputs and labels.

    `optimizer` has torch's `state`: for each parameter, named tensors. Call
    this after `optimizer.step()`, which creates the state. Step counters (one
    number per tensor) are left out, as in every published convention.
    """
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor) and name != "step"
    ]
    return {
        "weights": tensor_bytes(parameters),
        "gradients": tensor_bytes(gradients),
        "optimizer": tensor_bytes(states),
        "inputs and labels": tensor_bytes(batch),
    }
