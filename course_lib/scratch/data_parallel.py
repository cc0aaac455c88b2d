"""Single-process data parallelism, local SGD, and synchronized batch norm."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from course_lib.scratch.wire import all_reduce

# Data parallelism in one process, as nn.DataParallel does it.
#
# Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 2.2. In every
# step the batch is scattered, the weights are copied to each device, one
# thread per device computes, and the outputs are gathered on the first
# device, where the gradients are summed as well.


Weights = dict[str, Tensor]  # by name


class DataParallel(nn.Module):
    """Replicates `module` over `devices`, which may repeat.

    The parameters live on the first device. Changes that a replica makes to
    its buffers are lost after the step.
    """

    def __init__(
        self, module: nn.Module, devices: Sequence[torch.device | str]
    ) -> None:
        super().__init__()
        self.devices = [torch.device(device) for device in devices]
        self.module = module.to(self.devices[0])
        # Each thread needs its own modules, to be filled with weights.
        self._shells = [shell(module) for _ in self.devices[1:]]

    def forward(self, inputs: Tensor) -> Tensor:  # (batch, …)
        pieces = scatter(inputs, self.devices)
        others = len(pieces) - 1  # a small batch does not reach all devices
        models = [self.module, *self._shells[:others]]
        return gather(compute(models, self.replicate()[: others + 1], pieces))

    def replicate(self) -> list[Weights]:
        """The weights on each device: the originals, then copies.

        Autograd tracks the copy: its backward pass moves the copies'
        gradients to the first device and sums them there.
        """
        originals = {
            **dict(self.module.named_parameters()),
            **dict(self.module.named_buffers()),
        }
        return [originals] + [
            {
                name: tensor.to(device, copy=True)
                for name, tensor in originals.items()
            }
            for device in self.devices[1:]
        ]


def scatter(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    """Split the batch over the devices: (batch, …) -> (part, …) each."""
    pieces = batch.chunk(len(devices))
    pairs = zip(pieces, devices, strict=False)  # there may be fewer pieces
    return [piece.to(device) for piece, device in pairs]


def compute(
    models: Sequence[nn.Module],
    weights: Sequence[Weights],
    pieces: Sequence[Tensor],
) -> list[Tensor]:
    """The outputs of all pieces, each computed in its own thread."""
    gradients = torch.is_grad_enabled()  # grad mode is per thread

    def work(
        model: nn.Module, local_weights: Weights, piece: Tensor
    ) -> Tensor:
        gpu = piece.device if piece.is_cuda else None
        context = torch.cuda.device(gpu) if gpu else nullcontext()
        with context, torch.set_grad_enabled(gradients):
            return functional_call(model, local_weights, (piece,))

    with ThreadPoolExecutor(len(models)) as threads:
        return list(threads.map(work, models, weights, pieces))


def gather(outputs: Sequence[Tensor]) -> Tensor:
    """Concatenate on the first device: (part, …) each -> (batch, …)."""
    return torch.cat([output.to(outputs[0].device) for output in outputs])


def shell(module: nn.Module) -> nn.Module:
    """A copy of `module` with weights on meta; tied weights stay tied."""
    blanks = {
        id(tensor): torch.empty_like(tensor, device="meta")
        for tensor in [*module.parameters(), *module.buffers()]
    }
    return copy.deepcopy(module, blanks)


# Local SGD: ranks train independently and periodically average weights.
#
# McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from
# Decentralized Data", arXiv:1602.05629, algorithm 1; Stich 2019, "Local SGD
# Converges Fast and Communicates Little", arXiv:1805.09767, algorithm 1.


class LocalSGD:
    """Steps an optimizer and averages the weights every `every` updates.

    With every=1 and plain SGD this is DDP: from equal weights, the mean of
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


# Batch normalisation over the samples of all ranks.


class SumOverRanks(Function):
    """All-reduce, in backward too, as every rank's loss uses the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return all_reduce(gradient)


class SyncBatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` with mean and variance over all ranks.

    As torch.nn.SyncBatchNorm on GPUs. Forward and backward each all-reduce
    2·features + 1 numbers and block on them.
    """

    def forward(self, x: Tensor) -> Tensor:  # (samples, features)
        if not self.training:
            return super().forward(x)
        count = x.new_full((1,), len(x))
        mine = torch.cat([x.sum(0), x.square().sum(0), count])
        total, squares, samples = SumOverRanks.apply(mine).split(
            [self.num_features, self.num_features, 1]
        )
        mean = total / samples
        variance = squares / samples - mean.square()
        self._remember(mean.detach(), variance.detach(), samples.detach())
        normal = (x - mean) / (variance + self.eps).sqrt()
        return normal * self.weight + self.bias

    @torch.no_grad()
    def _remember(
        self, mean: Tensor, variance: Tensor, samples: Tensor
    ) -> None:
        """Move the running statistics towards those of this batch."""
        assert self.momentum is not None and self.running_mean is not None
        assert self.running_var is not None  # there are running statistics
        self.running_mean.lerp_(mean, self.momentum)
        unbiased = variance * samples / (samples - 1)
        self.running_var.lerp_(unbiased, self.momentum)
