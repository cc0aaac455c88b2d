"""Counts the FLOPs of matrix products that torch really computes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)


def matmul_flops(step: Callable[[], object]) -> int:
    """FLOPs of all matrix products during `step()`, 2 for each multiply-add.

    By the formulas of torch's FlopCounterMode, which itself cannot look into
    a custom autograd Function. Attention counts as products over all pairs of
    positions, also where a causal mask lets a kernel skip half of them; the
    backward pass of fused attention counts the scores that it computes again.
    """
    with _Counter() as counter:
        step()
    return counter.total


class _Counter(TorchDispatchMode):
    """Sees each operator that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = _FORMULAS.get(func.overloadpacket)
        if formula:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q.shape, k.shape, v.shape)


def _flash_backward(*args: Any, **_: Any) -> int:
    gradient, q, k, v = (tensor.shape for tensor in args[:4])
    return sdpa_backward_flop_count(gradient, q, k, v)


# torch 2.13 itself has no formula for flash attention on a CPU.
_ATEN = torch.ops.aten
_FORMULAS = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _flash_forward,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        _flash_backward
    ),
}
