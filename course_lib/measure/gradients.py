"""Flattens a model's gradients and compares two sets of them."""

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
