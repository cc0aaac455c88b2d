"""Where the optimizer works: on the device, or on the host beside it."""

import torch
from torch import Tensor


class Place:
    """The device itself: nothing moves."""

    def put(self, tensor: Tensor) -> Tensor:
        """`tensor`, where the optimizer works."""
        return tensor

    def fetch(self, source: Tensor, target: Tensor) -> None:
        """Copy the optimizer's `source` into the device's `target`."""
        target.copy_(source)


class Host(Place):
    """The host's memory, which is larger; counts what goes over the bus.

    Gradients go there, updated weights come back; states and the weights that
    are updated stay. Where the device is a CPU the copies are made all the
    same. Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 4.1.
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
