"""Which parallelisms still work if the network moves only untyped bytes.

Every function below is the characteristic communication of one family, on a
model of three layers. `carry` converts the tensor given to the network:
`typed` leaves it unchanged, `opaque` views it as raw bytes.
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
    """View the memory as bytes: the network knows only their number."""
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
    """Gradient of layer 1 from this rank's rows, then summed over ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [weight.requires_grad_() for weight in weights()]
    forward(batch().chunk(ranks)[rank], layers).sum().backward()
    gradient = layers[0].grad
    assert gradient is not None
    dist.all_reduce(carry(gradient))
    return gradient


def tensor(carry: Carry) -> Tensor:
    """Layer 1 from a slice of its rows; partial products are summed."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own_rows = weights()[0].tensor_split(ranks)[rank]
    own_columns = batch().tensor_split(ranks, dim=1)[rank]
    partial = own_columns @ own_rows
    dist.all_reduce(carry(partial))
    return torch.relu(partial)


def pipeline(carry: Carry) -> Tensor:
    """Rank r has layer r: receives, computes, and sends the result on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = batch()
    if rank > 0:
        dist.recv(carry(x), rank - 1)
    x = torch.relu(x @ weights()[rank])
    if rank + 1 < ranks:
        dist.send(carry(x), rank + 1)
    return x


def expert(carry: Carry) -> Tensor:
    """Rank r has expert r: all-to-all to the experts, and back.

    Every rank has as many rows as there are ranks, one for each expert.
    """
    ranks = dist.get_world_size()
    local_rows = batch()[:ranks] + dist.get_rank()
    received, back = torch.empty_like(local_rows), torch.empty_like(local_rows)
    dist.all_to_all_single(carry(received), carry(local_rows))
    dist.all_to_all_single(
        carry(back), carry(torch.relu(received @ weights()[dist.get_rank()]))
    )
    return back


def alone(family: str, rank: int, ranks: int) -> Tensor:
    """The result of `family` in one process, without any network."""
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
    return torch.stack([torch.relu(rows[i] @ layers[i]) for i in range(ranks)])


FAMILIES: dict[str, Callable[[Carry], Tensor]] = {
    "data": data,
    "tensor": tensor,
    "pipeline": pipeline,
    "expert": expert,
}


def is_right(family: str, carry: Carry) -> bool:
    """Whether this rank's result equals one process's, up to rounding."""
    result = FAMILIES[family](carry)
    expected = alone(family, dist.get_rank(), dist.get_world_size())
    return torch.allclose(result, expected, atol=1e-5)
