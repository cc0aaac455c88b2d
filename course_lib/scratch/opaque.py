"""What each family of parallelism moves, and whether the network may be blind.

Every function below is the characteristic move of one family, on a model of
three layers. `carry` changes what is handed to the network: `typed` nothing,
`opaque` into bytes without a meaning.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

HIDDEN, ROWS, LAYERS = 8, 6, 3
Carry = Callable[[Tensor], Tensor]


def typed(tensor: Tensor) -> Tensor:
    """The tensor as it is: the network knows that it holds fp32 numbers."""
    return tensor


def opaque(tensor: Tensor) -> Tensor:
    """The same memory as bytes: the network knows only how many."""
    return tensor.view(torch.uint8)


def weights() -> list[Tensor]:
    """One matrix for each layer, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    size = (LAYERS, HIDDEN, HIDDEN)
    return list(torch.randn(size, generator=generator).unbind())


def batch() -> Tensor:
    """The samples of all ranks: (rows, hidden)."""
    return torch.randn(
        ROWS, HIDDEN, generator=torch.Generator().manual_seed(1)
    )


def forward(x: Tensor, layers: list[Tensor]) -> Tensor:
    """relu(x·W) layer by layer."""
    for weight in layers:
        x = torch.relu(x @ weight)
    return x


def data(carry: Carry) -> Tensor:
    """Gradient of layer 1: own rows only, then the sum over ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [weight.requires_grad_() for weight in weights()]
    forward(batch().chunk(ranks)[rank], layers).sum().backward()
    gradient = layers[0].grad
    assert gradient is not None
    dist.all_reduce(carry(gradient))
    return gradient


def tensor(carry: Carry) -> Tensor:
    """Layer 1 from a slice of its rows; then the sum of partial products."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own_rows = weights()[0].tensor_split(ranks)[rank]
    own_columns = batch().tensor_split(ranks, dim=1)[rank]
    partial = own_columns @ own_rows
    dist.all_reduce(carry(partial))
    return torch.relu(partial)


def pipeline(carry: Carry) -> Tensor:
    """Rank r has layer r: it receives, computes, and passes on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = batch()
    if rank > 0:
        dist.recv(carry(x), rank - 1)
    x = torch.relu(x @ weights()[rank])
    if rank + 1 < ranks:
        dist.send(carry(x), rank + 1)
    return x


def expert(carry: Carry) -> Tensor:
    """Rank r has expert r: own rows go out, those of others come in, and back.

    Every rank has as many rows as there are ranks, one for each expert.
    """
    ranks = dist.get_world_size()
    own = batch()[:ranks] + dist.get_rank()
    theirs, back = torch.empty_like(own), torch.empty_like(own)
    dist.all_to_all_single(carry(theirs), carry(own))
    dist.all_to_all_single(
        carry(back), carry(torch.relu(theirs @ weights()[dist.get_rank()]))
    )
    return back


def alone(family: str, rank: int, ranks: int) -> Tensor:
    """What one process gets, without any network."""
    layers = weights()
    if family == "data":
        leaves = [weight.requires_grad_() for weight in layers]
        forward(batch(), leaves).sum().backward()
        assert leaves[0].grad is not None
        return leaves[0].grad
    if family == "tensor":
        return forward(batch(), layers[:1])
    if family == "pipeline":
        return forward(batch(), layers[: rank + 1])
    rows = batch()[:ranks] + rank
    return torch.stack(
        [torch.relu(rows[it] @ layers[it]) for it in range(ranks)]
    )


FAMILIES: dict[str, Callable[[Carry], Tensor]] = {
    "data": data,
    "tensor": tensor,
    "pipeline": pipeline,
    "expert": expert,
}


def is_right(family: str, carry: Carry) -> bool:
    """Whether this rank has what one process has, up to rounding."""
    found = FAMILIES[family](carry)
    right = alone(family, dist.get_rank(), dist.get_world_size())
    return torch.allclose(found, right, atol=1e-5)
