"""Batch normalisation over the samples of all ranks, not of one."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.scratch.wire import all_reduce


class SumOverRanks(Function):
    """The sum over ranks. Backward sums too: each rank's loss uses it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return all_reduce(gradient)


class SyncBatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` whose mean and variance are those of all ranks.

    What torch.nn.SyncBatchNorm does on GPUs. Forward and backward send
    2·features + 1 numbers each, and both wait for them.
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
