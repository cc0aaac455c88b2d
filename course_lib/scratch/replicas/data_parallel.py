"""Data parallelism in one process, as nn.DataParallel does it.

Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 2.2. In every
step the batch is scattered, the weights are copied to each device, one thread
a device computes, and the outputs are gathered on the first device, where the
gradients are added up as well.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]  # by name


class DataParallel(nn.Module):
    """`module`, computed on `devices`; several may be the same one.

    Its parameters live on the first device. What a copy of the model changes
    in its buffers is lost after the step.
    """

    def __init__(
        self, module: nn.Module, devices: Sequence[torch.device | str]
    ) -> None:
        super().__init__()
        self.devices = [torch.device(device) for device in devices]
        self.module = module.to(self.devices[0])
        # Each thread needs layers of its own, into which weights are put.
        self._shells = [shell(module) for _ in self.devices[1:]]

    def forward(self, inputs: Tensor) -> Tensor:  # (batch, …)
        pieces = scatter(inputs, self.devices)
        others = len(pieces) - 1  # a small batch does not reach all devices
        models = [self.module, *self._shells[:others]]
        return gather(compute(models, self.replicate()[: others + 1], pieces))

    def replicate(self) -> list[Weights]:
        """The weights on each device: the originals, then copies.

        Copying is an operation that autograd knows: its backward pass brings
        the copies' gradients to the first device and adds them up there.
        """
        own = {
            **dict(self.module.named_parameters()),
            **dict(self.module.named_buffers()),
        }
        return [own] + [
            {
                name: tensor.to(device, copy=True)
                for name, tensor in own.items()
            }
            for device in self.devices[1:]
        ]


def scatter(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    """A piece of the batch for each device: (batch, …) -> (part, …)."""
    pieces = batch.chunk(len(devices))
    pairs = zip(pieces, devices, strict=False)  # there may be fewer pieces
    return [piece.to(device) for piece, device in pairs]


def compute(
    models: Sequence[nn.Module],
    weights: Sequence[Weights],
    pieces: Sequence[Tensor],
) -> list[Tensor]:
    """The outputs of all pieces, each computed by a thread of its own."""
    gradients = torch.is_grad_enabled()  # a thread starts with its own answer

    def work(model: nn.Module, own: Weights, piece: Tensor) -> Tensor:
        gpu = piece.device if piece.is_cuda else None
        place = torch.cuda.device(gpu) if gpu else nullcontext()
        with place, torch.set_grad_enabled(gradients):
            return functional_call(model, own, (piece,))

    with ThreadPoolExecutor(len(models)) as threads:
        return list(threads.map(work, models, weights, pieces))


def gather(outputs: Sequence[Tensor]) -> Tensor:
    """All outputs on the first one's device: (part, …) -> (batch, …)."""
    return torch.cat([output.to(outputs[0].device) for output in outputs])


def shell(module: nn.Module) -> nn.Module:
    """A copy of `module` whose weights take no memory; shared ones stay so."""
    blanks = {
        id(tensor): torch.empty_like(tensor, device="meta")
        for tensor in [*module.parameters(), *module.buffers()]
    }
    return copy.deepcopy(module, blanks)
