"""torch's differentiable collectives, from the private module that defines them.

torch 2.13 deprecates the public ones of torch.distributed.nn in their favour, and renamed the
all-gather.
"""

from collections.abc import Callable

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import _functional_collectives as collectives

_NEW, _OLD = "all_gather_single_autograd", "all_gather_tensor_autograd"
_gather: Callable[[Tensor, int, ProcessGroup], Tensor] = getattr(
    collectives, _NEW if hasattr(collectives, _NEW) else _OLD
)


def all_to_all(rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup) -> Tensor:
    """Send `sent[r]` rows to rank r; the backward pass returns their gradients."""
    arrived: Tensor = collectives.all_to_all_single_autograd(rows, received, sent, group)
    return arrived


def all_gather(shard: Tensor, group: ProcessGroup) -> Tensor:
    """(s, …) -> (n·s, …); the backward pass reduce-scatters the gradients of all ranks."""
    whole = _gather(shard, 0, group)
    if whole.requires_grad:
        whole.register_hook(Tensor.contiguous)  # some versions of torch scatter only these
    return whole
