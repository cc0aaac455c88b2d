"""Linear layers whose matrix products take rounded numbers, as fp8 units do.

Emulated: the rounded operands are multiplied in fp32, so no time is saved.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Formats:
    """The formats of both products' operands; with a scale per tensor or not.

    By default those of Transformer Engine's `Format.HYBRID`: E4M3, and E5M2
    for gradients.
    """

    forward: torch.dtype = torch.float8_e4m3fn  # inputs and weights
    backward: torch.dtype = torch.float8_e5m2  # gradients of the outputs
    scaled: bool = True


def round_to(
    values: Tensor, dtype: torch.dtype, scaled: bool = True
) -> Tensor:
    """What is left of the values, same shape and dtype, after rounding.

    `scaled`: the largest of them becomes the largest number of `dtype`, and
    all are multiplied back. What is beyond that number becomes that number.
    Micikevicius et al. 2022, arXiv:2209.05433, section 3.
    """
    most = torch.finfo(dtype).max
    smallest = torch.finfo(values.dtype).tiny  # 0 / 0 is not a number
    scale = values.abs().amax().clamp(min=smallest) / most if scaled else 1
    inside = (values / scale).clamp(-most, most)
    return inside.to(dtype).to(values.dtype) * scale


class RoundedProduct(torch.autograd.Function):
    """x · weightᵀ, forward and backward, of rounded operands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Formats) -> Tensor:
        x = round_to(x, how.forward, how.scaled)
        weight = round_to(weight, how.forward, how.scaled)
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = round_to(gradient, ctx.how.backward, ctx.how.scaled)
        rows = gradient.flatten(0, -2)  # (tokens, out)
        return gradient @ weight, rows.T @ x.flatten(0, -2), None


class RoundedLinear(nn.Module):
    """A linear layer with rounded products; its own weight stays as it is."""

    def __init__(self, layer: nn.Linear, how: Formats) -> None:
        super().__init__()
        self.weight, self.bias, self.how = layer.weight, layer.bias, how

    def forward(self, x: Tensor) -> Tensor:
        product = RoundedProduct.apply(x, self.weight, self.how)
        return product if self.bias is None else product + self.bias


def round_products(model: nn.Module, how: Formats) -> None:
    """Every nn.Linear inside `model` becomes a RoundedLinear, in place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, RoundedLinear(layer, how))
