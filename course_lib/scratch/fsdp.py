"""Fully sharded data parallelism: units are gathered on demand."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.scratch import flat_parameter
from course_lib.scratch.flat_parameter import (
    FlatParameter,
    Reduction,
    gathered,
)
from course_lib.scratch.wire import Work

# Hooks that replace a model's parameters by shards, unit by unit.
#
# A module's weights are gathered and freed without autograd noticing.


class Gather(Function):
    """Shard -> full parameters; backward passes full gradients to `fsdp`."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, number: int, fsdp: "Hooked") -> Any:
        ctx.number, ctx.fsdp = number, fsdp
        unit = fsdp.units[number]
        # Views of `.data`, so that autograd does not consider its saved
        # tensors modified when the same values are gathered again.
        return tuple(unit.views(unit.whole.data).values())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.fsdp.after_backward(ctx.number, gradients)
        return None, None, None  # the shard's .grad comes from the reduction


class Hooked(ABC):
    """Shards `model` over ranks, in place; it is called and trained as before.

    Each of `blocks`, in the order of the forward pass, is a unit and returns
    one tensor; the root unit, number 0, has all remaining parameters.
    `model.parameters()` are now `shards`, one for each unit: build the
    optimizer from them. A shard includes norms and biases, so all weights
    share one weight decay, and none may be frozen (ValueError).
    `dtype`: in which units are gathered and computed; shards and reductions
    stay fp32. `weights`: (parameter, value) pairs for a model on meta.
    While a module computes, its parameters are views of its unit's full
    vector; otherwise they are placeholders without memory.
    """

    unit: Any  # the class of the units

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
        self.model, self.reshard, self.prefetch = model, reshard, prefetch
        self.sync = True  # False: accumulate full gradients, do not reduce
        self.units: list[Any] = []
        self.modules: list[nn.Module] = []
        self.places: list[list[list[tuple[nn.Module, str]]]] = []
        self.placeholders: list[list[Tensor]] = []
        homes: flat_parameter.Homes = {}
        owned = flat_parameter.parameters_of_units(model, blocks)
        for module, named in zip([model, *blocks], owned, strict=True):
            if named:  # a unit without parameters is left out
                unit_device = device or next(iter(named)).device
                parameters = {names[0]: p for p, names in named.items()}
                unit = self.unit(parameters, unit_device, group, dtype)
                homes |= {p: (unit, names[0]) for p, names in named.items()}
                self._add(module, unit, named)
        self.shards = [unit.shard for unit in self.units]
        flat_parameter.fill(homes, weights)

    def _add(
        self,
        module: nn.Module,
        unit: Any,
        named: dict[nn.Parameter, list[str]],
    ) -> None:
        number = len(self.units)
        self.units.append(unit)
        self.modules.append(module)
        self.places.append(
            [
                [remove(self.model, name) for name in names]
                for names in named.values()
            ]
        )
        self.placeholders.append(
            [torch.empty(p.shape, device="meta") for p in named]
        )
        self._insert(number, self.placeholders[number])
        module.register_parameter("flat_shard", unit.shard)
        module.register_forward_pre_hook(partial(self._enter, number))
        module.register_forward_hook(partial(self._leave, number))

    def _insert(self, number: int, tensors: Iterable[Tensor]) -> None:
        """Make `tensors` the attributes of the modules that use them."""
        for places, tensor in zip(self.places[number], tensors, strict=True):
            for module, attribute in places:
                setattr(module, attribute, tensor)

    def _enter(self, number: int, *_: Any) -> None:
        if number == 0:
            for unit in self.units:  # anything left is from before an update
                unit.free()
        self.before_forward(number)
        whole = Gather.apply(self.shards[number], number, self)
        self._insert(number, whole)

    def _leave(
        self, number: int, _module: nn.Module, _inputs: Any, output: Tensor
    ) -> None:
        self._insert(number, self.placeholders[number])
        self.after_forward(number)
        if output.requires_grad:
            # The output's gradient arrives when backward reaches this unit.
            output.register_hook(lambda _: self.before_backward(number))
        else:
            self.units[number].free()

    def frees(self, number: int) -> bool:
        """Whether a unit is freed between forward and backward (not root)."""
        return self.reshard and self.modules[number] is not self.model

    @abstractmethod
    def before_forward(self, number: int) -> None:
        """Unit `number` must be gathered when this returns."""

    @abstractmethod
    def after_forward(self, number: int) -> None:
        """Unit `number` is not needed until its backward pass."""

    @abstractmethod
    def before_backward(self, number: int) -> None:
        """Unit `number` must be gathered again when this returns."""

    @abstractmethod
    def after_backward(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Take unit `number`'s `gradients`, in their parameters' shapes."""

    def gathered(self, gradients: bool = False) -> dict[str, Tensor]:
        """All full weights, or gradients, by name; a collective call."""
        return gathered(self.units, gradients)


def remove(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Remove the parameter `name`; returns its module and attribute."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    delattr(module, attribute)
    return module, attribute


# Fully sharded data parallelism (FSDP), with prefetching.
#
# Each unit is whole only while it computes: gathered before its forward pass,
# freed after it, gathered again before its backward pass; then its gradients
# are averaged and scattered. Meanwhile the next unit is being gathered.
# Zhao et al. 2023, arXiv:2304.11277, sections 3.2 and 3.3.


class FSDPUnit:
    """Parameters that are gathered, freed and reduced together.

    `shard` is this rank's part of the flat vector; `whole` is the full vector
    in `dtype`, whose storage is empty while the unit is freed. `gradient`,
    also full, accumulates over backward passes until it is reduced.
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
        """Each parameter's view of a full vector (size,), by name."""
        return self.flat.views(whole)

    def fill(self, name: str, value: Tensor) -> None:
        """Copy the part of parameter `name` that lies in this rank's shard."""
        self.flat.fill(name, value)

    def start_gather(self) -> None:
        """Start the all-gather of `whole`, unless it is allocated already."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.nbytes)
            self.gathering = self.flat.start_gather(self.whole)

    def gather(self) -> None:
        """Gather `whole`, and wait for it."""
        self.start_gather()
        if self.gathering:
            self.gathering.wait()
            self.gathering = None

    def free(self) -> None:
        """Release the storage of `whole`; views of it remain, but empty."""
        if self.gathering:  # prefetched but never used
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
        """Start to reduce-scatter `gradient`, and drop the reference to it."""
        assert self.gradient is not None
        self.reduction = Reduction(self.flat, self.gradient)
        self.gradient = None

    def finish_reduction(self) -> None:
        """Add this rank's part to `shard.grad`, if a reduction has started."""
        if self.reduction:
            self.reduction.finish()
            self.reduction = None


class FSDP(Hooked):
    """Gathers the root from forward to backward, a block while it computes.

    Pass for example `model.blocks` as `blocks`; `Hooked` describes the
    options and the changes to the model.
    """

    unit = FSDPUnit

    def before_forward(self, number: int) -> None:
        """Gather the unit and prefetch the next one."""
        self.units[number].gather()
        self.fetch(number + 1)

    def after_forward(self, number: int) -> None:
        """Free the unit, if the backward pass will gather it again."""
        if self.frees(number):
            self.units[number].free()

    def before_backward(self, number: int) -> None:
        """Gather the unit again and prefetch the previous one."""
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
        """Start to gather unit `number`, if it exists and prefetch is on."""
        if self.prefetch and 0 <= number < len(self.units):
            self.units[number].start_gather()


# Deferred initialization: a model without memory, filled shard by shard.
#
# A model built under `torch.device("meta")` has shapes but no values. The
# calls that would have initialized it (normal_, uniform_, fill_, …) are
# recorded and replayed in the same order: the same random numbers, so the
# same weights. Zhao et al. 2023, arXiv:2304.11277, section 4.1.


class Recording(TorchDispatchMode):
    """Records each operator that modifies a tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Tensor, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:
            target, *others = args
            self.calls.append((func, target, others, kwargs or {}))
        return func(*args, **(kwargs or {}))


@dataclass
class Deferred:
    """A model on the meta device, with its recorded initialization calls."""

    model: Any
    calls: list[tuple[Any, Tensor, Any, Any]] = field(repr=False)
    random_state: Tensor = field(repr=False)  # before the first call

    def replay(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the model with its values, once final.

        A tensor is in memory only between its first and its last call.
        """
        torch.set_rng_state(self.random_state)
        last = {call[1]: number for number, call in enumerate(self.calls)}
        values: dict[Tensor, Tensor] = {}
        for number, (func, target, others, options) in enumerate(self.calls):
            if target not in values:
                values[target] = torch.empty(target.shape, dtype=target.dtype)
            func(values[target], *others, **options)
            if last[target] == number:
                yield target, values.pop(target)


def defer(build: Callable[[], nn.Module]) -> Deferred:
    """Call `build()` on the meta device and record its initialisation."""
    with torch.device("meta"), Recording() as recording:
        model = build()
    # Nothing was drawn on meta, so the generator's state is unchanged.
    return Deferred(model, recording.calls, torch.get_rng_state())
