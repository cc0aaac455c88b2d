"""HybridModel: a table on a parameter server, a dense part in DDP.

The sparse part is a remote module: calling it is a call to the server, and
distributed autograd follows the call backwards. Damania et al. 2023,
"PyTorch RPC", MLSys.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed.nn.api.remote_module import RemoteModule
    from torch.distributed.optim import DistributedOptimizer


class HybridModel(nn.Module):
    """`table` lies on the server, `dense` on all trainers, equal by DDP."""

    def __init__(
        self,
        table: "RemoteModule",
        dense: nn.Module,
        trainers: dist.ProcessGroup,
    ) -> None:
        super().__init__()
        self.table = table
        self.dense = DistributedDataParallel(dense, process_group=trainers)

    def forward(self, bags: Tensor) -> Tensor:
        """Numbers of rows (n, k) in, what `dense` makes of their sums out."""
        # Not self.table(bags): a remote module has no hooks.
        rows: Tensor = self.table.forward(bags)
        device = next(self.dense.parameters()).device
        result: Tensor = self.dense(rows.to(device))
        return result


def update(
    loss: Callable[[], Tensor],
    optimizers: Iterable["DistributedOptimizer"],
    trainers: dist.ProcessGroup,
) -> Tensor:
    """One update of one trainer, while others make theirs; returns its loss.

    Gradients are kept by the context and not in `.grad`: a server has those of
    several trainers at once.
    """
    with dist_autograd.context() as context:
        found = loss()
        dist_autograd.backward(context, [found])
        # No row may change before everybody has looked theirs up. Under DDP
        # they have, as its all-reduce needed their gradients; without it only
        # this barrier waits.
        dist.barrier(trainers)
        for optimizer in optimizers:
            optimizer.step(context)
    # The next rows must be those of the updated table.
    dist.barrier(trainers)
    return found.detach()


def remote(
    parameters: Iterable[nn.Parameter],
) -> "list[rpc.RRef[nn.Parameter]]":
    """Own parameters, as DistributedOptimizer wants them."""
    return [rpc.RRef(parameter) for parameter in parameters]
