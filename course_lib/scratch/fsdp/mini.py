"""Fully sharded data parallelism (FSDP), with what makes it fast.

Each unit is whole only while it computes: gathered before its forward pass,
freed after it, gathered again before its backward pass; then its gradients
are averaged and scattered. Meanwhile the next unit is on its way.
Zhao et al. 2023, arXiv:2304.11277, sections 3.2 and 3.3.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.fsdp.flat_parameter import FlatParameter, Reduction
from course_lib.scratch.fsdp.hooks import Hooked
from course_lib.scratch.wire import Work


class FSDPUnit:
    """Parameters that are gathered, freed and reduced together.

    `shard` is this rank's part of their flat vector, `whole` all of it in
    `dtype`, with no memory behind it while the unit is freed. `gradient` is
    whole as well: what backward passes have added up and nobody has reduced.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        device: torch.device,
        group: ProcessGroup | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.group = group
        self.flat = FlatParameter(parameters, device, group)
        self.shard = self.flat.shard
        self.whole = self.shard.detach().new_empty(self.flat.size, dtype=dtype)
        self.gradient: Tensor | None = None
        self.gathering: Work | None = None
        self.reduction: Reduction | None = None
        self.free()

    def views(self, whole: Tensor) -> dict[str, Tensor]:
        """Each parameter's own view of a whole vector (size,)."""
        return self.flat.views(whole)

    def fill(self, name: str, value: Tensor) -> None:
        """Copy the part of parameter `name` that lies in this rank's shard."""
        self.flat.fill(name, value)

    def start_gather(self) -> None:
        """Start to fetch the whole parameter, unless it is here."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.nbytes)
            self.gathering = self.flat.start_gather(self.whole)

    def gather(self) -> None:
        """Return when the whole parameter is here."""
        self.start_gather()
        if self.gathering:
            self.gathering.wait()
            self.gathering = None

    def free(self) -> None:
        """Give the memory back; the tensors that view it stay, empty."""
        if self.gathering:  # fetched ahead and never used
            self.gather()
        self.whole.untyped_storage().resize_(0)

    def add_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Add the parameters' gradients to `gradient`, in fp32."""
        if self.gradient is None:
            self.gradient = self.shard.detach().new_zeros(self.flat.size)
        slots = self.views(self.gradient).values()
        for slot, gradient in zip(slots, gradients, strict=True):
            slot += gradient

    def start_reduction(self) -> None:
        """Start to average `gradient` over ranks, and let go of it."""
        assert self.gradient is not None
        self.reduction = Reduction(self.flat, self.gradient)
        self.gradient = None

    def finish_reduction(self) -> None:
        """Add this rank's part to `shard.grad`, if a reduction has started."""
        if self.reduction:
            self.reduction.finish()
            self.reduction = None


class FSDP(Hooked):
    """The root is whole from forward to backward, a block while it computes.

    `model.blocks` as `blocks`, for example; see `Hooked` for what it does to
    a model, and for the options.
    """

    unit = FSDPUnit

    def before_forward(self, number: int) -> None:
        """Gather the unit; meanwhile the next one is on its way."""
        self.units[number].gather()
        self.fetch(number + 1)

    def after_forward(self, number: int) -> None:
        """Free what the backward pass will gather again."""
        if self.frees(number):
            self.units[number].free()

    def before_backward(self, number: int) -> None:
        """Gather again; meanwhile the previous unit is on its way."""
        self.units[number].gather()
        self.fetch(number - 1)

    def after_backward(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Free the weights and start to reduce the gradients."""
        self.units[number].free()
        for unit in self.units:  # one reduction at a time
            unit.finish_reduction()
        self.units[number].add_gradients(gradients)
        if self.sync:
            self.units[number].start_reduction()
        if number == 0:  # first in forward, so last in backward
            self.units[0].finish_reduction()

    def fetch(self, number: int) -> None:
        """Start to gather a unit, if there is one and prefetch is on."""
        if self.prefetch and 0 <= number < len(self.units):
            self.units[number].start_gather()
