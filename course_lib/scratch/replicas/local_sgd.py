"""Local SGD: ranks train alone, and from time to time average their weights.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", arXiv:1602.05629, algorithm 1; Stich 2019, "Local SGD
Converges Fast and Communicates Little", arXiv:1805.09767, algorithm 1.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer


class LocalSGD:
    """Steps an optimizer, and every `every` updates averages the weights.

    With every=1 and plain SGD it is DDP: from equal weights, the mean of
    w - lr·g over ranks is w - lr·(mean of g).
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, every: int
    ) -> None:
        self.model, self.optimizer, self.every = model, optimizer, every
        self.updates = 0

    def step(self) -> None:
        """One update on this rank's own gradients, which become None."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        if self.updates % self.every == 0:
            average(self.model)


@torch.no_grad()
def average(model: nn.Module) -> None:
    """Replace the weights by their mean over ranks, in one all-reduce."""
    flat = parameters_to_vector(model.parameters())
    dist.all_reduce(flat)
    vector_to_parameters(flat / dist.get_world_size(), model.parameters())
