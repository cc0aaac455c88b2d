"""Where the optimizer works: on the device, or on the host beside it."""

import torch
from torch import Tensor


class OptimizerPlace:
    """The device itself: nothing moves."""

    def put(self, tensor: Tensor) -> Tensor:
        """`tensor`, where the optimizer works."""
        return tensor

    def fetch(self, source: Tensor, target: Tensor) -> None:
        """Copy the optimizer's `source` into the device's `target`."""
        target.copy_(source)


class Host(OptimizerPlace):
    """The host's memory, which is larger; counts what crosses the bus.

    Gradients go there and updated weights come back; optimizer states and the
    fp32 weights stay there. If the device is a CPU, the copies are still made.
    Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 4.1.
    """

    def __init__(self) -> None:
        self.put_bytes = 0
        self.fetched_bytes = 0

    def put(self, tensor: Tensor) -> Tensor:
        self.put_bytes += tensor.nbytes
        return torch.empty_like(tensor, device="cpu").copy_(tensor)

    def fetch(self, source: Tensor, target: Tensor) -> None:
        self.fetched_bytes += target.nbytes
        target.copy_(source)
