"""Fully sharded data parallelism (FSDP), with what makes it fast.

Each unit is whole only while it computes: gathered before its forward pass,
freed after it, gathered again before its backward pass; then its gradients
are averaged and scattered. Meanwhile the next unit is on its way.
Zhao et al. 2023, arXiv:2304.11277, sections 3.2 and 3.3.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from course_lib.scratch.fsdp import checks
from course_lib.scratch.fsdp.flat_parameter import gathered
from course_lib.scratch.fsdp.unit import cut


class Gather(Function):
    """Shard in, whole parameters out; in backward, whole gradients in."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, number: int, fsdp: "FSDP") -> Any:
        ctx.number, ctx.fsdp = number, fsdp
        return tuple(fsdp.units[number].views())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.fsdp.after_backward(ctx.number, gradients)
        return None, None, None  # the shard's .grad comes from the reduction


class FSDP:
    """Cuts `model` over ranks; afterwards it is called and trained as before.

    Each of `blocks`, in the order of the forward pass, is a unit and returns
    one tensor; the root unit is all the rest, whole from forward to backward.
    `model.parameters()` are now `shards`, one for each unit: build the
    optimizer from them. A shard has norms and biases in it, so all weights
    share one weight decay, and none may be frozen (ValueError).
    `dtype`: in which units are gathered and computed; shards and reductions
    stay fp32. `weights`: (parameter, value) pairs for a model on meta.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        *,
        device: torch.device | None = None,
        reshard: bool = True,
        prefetch: bool = True,
        dtype: torch.dtype = torch.float32,
        weights: Iterable[tuple[Tensor, Tensor]] | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        checks.check_group()
        self.model, self.reshard, self.prefetch = model, reshard, prefetch
        self.units = cut(model, blocks, device, dtype, weights, group)
        self.flats = [unit.flat for unit in self.units]
        self.shards = [flat.shard for flat in self.flats]
        for n, unit in enumerate(self.units):
            module = unit.module
            module.register_forward_pre_hook(partial(self.before_forward, n))
            module.register_forward_hook(partial(self.after_forward, n))

    def before_forward(self, number: int, *_: Any) -> None:
        """Put whole parameters into the module; fetch the next unit."""
        if number == 0:
            for unit in self.units:  # anything left is from before an update
                unit.free()
        unit = self.units[number]
        unit.gather()
        self._fetch(number + 1)
        unit.insert(Gather.apply(unit.flat.shard, number, self))

    def after_forward(
        self, number: int, module: nn.Module, _inputs: Any, output: Tensor
    ) -> None:
        """Free what the backward pass will gather again."""
        unit = self.units[number]
        unit.insert(unit.placeholders)
        inner = module is not self.model and self.reshard
        if inner or not output.requires_grad:
            unit.free()
        if output.requires_grad:
            output.register_hook(partial(self.before_backward, number))

    def before_backward(self, number: int, _gradient: Tensor) -> None:
        """Gather again; meanwhile the previous unit is on its way."""
        self.units[number].gather()
        self._fetch(number - 1)

    def after_backward(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Free the weights and start to reduce the gradients."""
        self.units[number].free()
        for unit in self.units:  # one reduction at a time
            unit.finish_reduction()
        self.units[number].start_reduction(gradients)
        if number == 0:  # first in forward, so last in backward
            self.units[0].finish_reduction()

    def _fetch(self, number: int) -> None:
        if self.prefetch and 0 <= number < len(self.units):
            self.units[number].start_gather()

    def gathered(self, gradients: bool = False) -> dict[str, Tensor]:
        """All weights, or gradients, whole, by name; every rank calls it."""
        return gathered(self.flats, gradients)
