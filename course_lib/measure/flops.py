"""Counts the FLOPs of matrix products that torch really computes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from course_lib.measure.operators import Listener


def matmul_flops(step: Callable[[], object]) -> int:
    """FLOPs of all matrix products during `step()`, 2 for each multiply-add.

    Uses the formulas of torch's FlopCounterMode, which itself cannot look into
    a custom autograd Function. Attention counts as products over all pairs of
    positions, even where a causal mask lets a kernel skip half of them; the
    backward pass of fused attention includes the scores that it recomputes.
    """
    total = 0

    def add(operator: Any, args: Any, options: Any, result: Any) -> None:
        nonlocal total
        formula = _FORMULAS.get(operator.overloadpacket)
        if formula:
            total += formula(*args, **options, out_val=result)

    with Listener(add):
        step()
    return total


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(q.shape, k.shape, v.shape)
    return flops


def _flash_backward(*args: Any, **_: Any) -> int:
    gradient, q, k, v = (tensor.shape for tensor in args[:4])
    flops: int = sdpa_backward_flop_count(gradient, q, k, v)
    return flops


# torch 2.13 itself has no formula for flash attention on a CPU.
_ATEN = torch.ops.aten
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _flash_forward,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        _flash_backward
    ),
}
