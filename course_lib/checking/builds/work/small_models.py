"""Small models on which builds are checked: sizes that do not divide, weights used twice."""

import torch
from torch import Tensor, nn

WIDTH = 5
BOTH = ("left", "right")


class Branches(nn.Module):
    """Two branches between two uses of one layer; a frozen weight and a buffer.

    `order` names the branches that take part: backward comes to the last one first. Returns a
    loss, the sum over rows.
    """

    shift: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.ends = nn.Linear(WIDTH, WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: Tensor, order: tuple[str, ...] = BOTH) -> Tensor:
        x = self.ends(x) * self.frozen + self.shift
        branches = torch.stack([torch.tanh(getattr(self, name)(x)) for name in order])
        loss: Tensor = self.ends(branches.sum(0)).square().sum()
        return loss


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that get gradients, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Copies of the gradients by name."""
    return {n: None if p.grad is None else p.grad.clone() for n, p in trained(model).items()}


def rows(rank: int, number: int) -> Tensor:
    """The inputs of a rank in one backward pass; ranks have different numbers of rows."""
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(2 + rank, WIDTH, generator=generator)
