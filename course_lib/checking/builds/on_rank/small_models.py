"""Small models for checking builds: sizes that do not divide evenly, weights used twice."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

WIDTH = 5
BOTH = ("left", "right")


class Branches(nn.Module):
    """Two branches between two uses of one layer; a frozen weight, and buffers of two dtypes.

    `order` names the branches to use: backward reaches the last one first. Returns a loss, the sum
    over rows.
    """

    shift: Tensor
    count: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.ends = nn.Linear(WIDTH, WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("shift", torch.randn(WIDTH))
        self.register_buffer("count", torch.tensor(7 + seed))

    def forward(self, x: Tensor, order: tuple[str, ...] = BOTH) -> Tensor:
        x = self.ends(x) * self.frozen + self.shift
        branches = torch.stack([torch.tanh(getattr(self, name)(x)) for name in order])
        loss: Tensor = self.ends(branches.sum(0)).square().sum()
        return loss


class Sometimes(nn.Module):
    """A layer of 55 parameters, whose second half is used only if `both` is true."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        x = torch.tanh(self.always(x))
        return torch.tanh(self.sometimes(x)) if both else x


class Layered(nn.Module):
    """Two `Sometimes` layers between two uses of a weight of 25 numbers; returns a loss.

    `both`, for each layer: whether it uses its second half; None skips the layer.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ends = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList([Sometimes(), Sometimes()])

    def forward(self, x: Tensor, both: tuple[bool | None, bool] = (True, True)) -> Tensor:
        x = self.ends(x)
        for layer, all_of_it in zip(self.layers, both, strict=True):
            x = x if all_of_it is None else layer(x, all_of_it)
        loss: Tensor = (self.ends(x) - 1).square().sum()
        return loss


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Copies of the gradients by parameter name; None where there is no gradient."""
    return {n: None if p.grad is None else p.grad.clone() for n, p in trained(model).items()}


def rows(rank: int, number: int) -> Tensor:
    """The inputs of a rank in pass `number`, [2 + rank, WIDTH]: ranks differ in rows."""
    return random(100 * number + rank, 2 + rank, WIDTH)


def random(seed: int, *shape: int) -> Tensor:
    """A random tensor, the same on every rank that uses this seed."""
    return several_random(seed, (shape,))[0]


def several_random(seed: int, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """A random tensor of each shape, from one generator."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]
