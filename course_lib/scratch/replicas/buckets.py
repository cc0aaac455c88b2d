"""Gradient buckets: few large all-reduces instead of many small ones.

Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.3.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from course_lib.scratch.wire import Work

MIB = 2**20
# Begins to sum a tensor over ranks, in place; `wait()` on what it returns.
AllReduce = Callable[[Tensor], Work]


def fill(
    parameters: Iterable[Parameter], cap: int, first: int
) -> list[list[Parameter]]:
    """Parameters by bucket; a bucket is closed when it holds `cap` bytes.

    They go from the last parameter to the first, roughly the order in which
    backward makes gradients. The first bucket holds only `first` bytes, so
    that sending starts early. A bucket has one dtype and one device.
    """
    buckets: list[list[Parameter]] = []
    size, limit = 0, min(first, cap)
    last: tuple[torch.dtype, torch.device] | None = None
    for parameter in reversed(list(parameters)):
        kind = (parameter.dtype, parameter.device)
        if not buckets or size >= limit or kind != last:
            limit = cap if buckets else limit
            buckets.append([])
            size, last = 0, kind
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets


class Bucket:
    """Gradients that travel together: one flat tensor, and a view for each."""

    def __init__(self, parameters: list[Parameter]) -> None:
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_empty(sum(sizes))  # (elements,)
        pieces = zip(parameters, self.flat.split(sizes), strict=True)
        self.views = {p: piece.view_as(p) for p, piece in pieces}
        self.waiting = set(parameters)  # for their gradients
        self.work: Work | None = None

    def take(self, parameter: Parameter) -> None:
        """Move the gradient into the bucket, as this rank's part of a mean."""
        if parameter not in self.waiting:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} got a second "
                "gradient in one backward pass: checkpoint its layers with "
                "use_reentrant=False"
            )
        assert parameter.grad is not None  # the hook runs after it is made
        view = self.views[parameter]
        torch.div(parameter.grad, dist.get_world_size(), out=view)
        parameter.grad = view  # the mean of all ranks will arrive here
        self.waiting.remove(parameter)

    def send(self, all_reduce: AllReduce) -> None:
        """Start the sum over ranks, while backward goes on."""
        self.work = all_reduce(self.flat)

    def receive(self) -> None:
        """Wait for the sum, and get ready for the next backward pass."""
        assert self.work is not None, "send comes first"
        self.work.wait()
        self.waiting = set(self.views)
