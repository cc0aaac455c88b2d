"""Several tensors as one vector, so that one collective carries them all."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn


def units_of(
    model: nn.Module, layers: Iterable[nn.Module]
) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Each layer with its parameters, and `model` with all that are left.

    A parameter that two layers share belongs to the first of them, and a
    frozen one (`requires_grad` False) to none.
    """
    units, seen = [], set()
    for module in [*layers, model]:
        trained = [p for p in module.parameters() if p.requires_grad]
        new = [p for p in trained if p not in seen]
        seen.update(new)
        units.append((module, new))
    return [(module, parameters) for module, parameters in units if parameters]


def flatten(tensors: Sequence[Tensor], ranks: int) -> Tensor:
    """One vector of all elements, zero-padded until `ranks` divides it."""
    pieces = [tensor.detach().flatten() for tensor in tensors]
    missing = -sum(map(len, pieces)) % ranks
    return torch.cat([*pieces, pieces[0].new_zeros(missing)])


def views(
    flat: Tensor, like: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor of `like` with its part of `flat`, in the same shape."""
    start = 0
    for tensor in like:
        piece = flat[start : start + tensor.numel()]
        start += tensor.numel()
        yield tensor, piece.view(tensor.shape)
