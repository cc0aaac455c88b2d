"""Flattens a model's gradients and compares two sets of them."""

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn


def flat_gradient(model: nn.Module) -> Tensor:
    """All gradients of `model` as one vector, in its parameters' order."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([gradient.detach().flatten() for gradient in gradients])


def relative_difference(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b|, Euclidean: 0 when equal; float32 rounding leaves 1e-7."""
    return float((a - b).norm() / b.norm())


def mean_square_norm(gradients: list[Tensor]) -> float:
    """Mean of |g|² over several gradients of the same batch size."""
    return float(torch.stack([g.square().sum() for g in gradients]).mean())


def flowing_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """What `loss().backward()` sends back through the matrices, as one vector.

    The gradients of the outputs of all nn.Linear, as precise as they were; the
    gradients of the weights are in `.grad` as usual.
    """
    found: list[Tensor] = []

    def keep(_layer: nn.Module, _before: object, after: tuple[Tensor]) -> None:
        found.append(after[0].detach().flatten())

    with ExitStack() as stack:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                hook = layer.register_full_backward_hook(keep)
                stack.callback(hook.remove)
        loss().backward()
    return torch.cat(found)
