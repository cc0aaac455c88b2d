"""Fully sharded data parallelism: units are gathered when needed."""

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

# Takes a model's parameters out, and says when each unit of them is needed.
#
# How a module's weights come and go while autograd knows nothing of it.


class Gather(Function):
    """Shard in, whole parameters out; in backward, whole gradients in."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, number: int, fsdp: "Hooked") -> Any:
        ctx.number, ctx.fsdp = number, fsdp
        unit = fsdp.units[number]
        # Views of `.data`, so that autograd does not take what it saved for
        # changed when the same values are gathered again.
        return tuple(unit.views(unit.whole.data).values())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.fsdp.after_backward(ctx.number, gradients)
        return None, None, None  # the shard's .grad comes from the reduction


class Hooked(ABC):
    """Cuts `model` over ranks; afterwards it is called and trained as before.

    Each of `blocks`, in the order of the forward pass, is a unit and returns
    one tensor; the root unit is all the rest, and has number 0.
    `model.parameters()` are now `shards`, one for each unit: build the
    optimizer from them. A shard has norms and biases in it, so all weights
    share one weight decay, and none may be frozen (ValueError).
    `dtype`: in which units are gathered and computed; shards and reductions
    stay fp32. `weights`: (parameter, value) pairs for a model on meta.
    While a module computes, views of its unit's whole vector are its
    parameters; otherwise placeholders without memory are.
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
        self.sync = True  # False: gradients stay whole, and are not reduced
        self.units: list[Any] = []
        self.modules: list[nn.Module] = []
        self.places: list[list[list[tuple[nn.Module, str]]]] = []
        self.placeholders: list[list[Tensor]] = []
        homes: flat_parameter.Homes = {}
        owned = flat_parameter.parameters_of_units(model, blocks)
        for module, named in zip([model, *blocks], owned, strict=True):
            if named:  # a unit without parameters is left out
                place = device or next(iter(named)).device
                parameters = {names[0]: p for p, names in named.items()}
                unit = self.unit(parameters, place, group, dtype)
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
            # Its first gradient says that backward has come to this unit.
            output.register_hook(lambda _: self.before_backward(number))
        else:
            self.units[number].free()

    def frees(self, number: int) -> bool:
        """Whether a unit is freed between its passes: not the root."""
        return self.reshard and self.modules[number] is not self.model

    @abstractmethod
    def before_forward(self, number: int) -> None:
        """Unit `number` must be whole when this returns."""

    @abstractmethod
    def after_forward(self, number: int) -> None:
        """Unit `number` is not needed until its backward pass."""

    @abstractmethod
    def before_backward(self, number: int) -> None:
        """Unit `number` must be whole again when this returns."""

    @abstractmethod
    def after_backward(self, number: int, gradients: Sequence[Tensor]) -> None:
        """These are unit `number`'s gradients, in their parameters' shapes."""

    def gathered(self, gradients: bool = False) -> dict[str, Tensor]:
        """All weights, or gradients, whole, by name; every rank calls it."""
        return gathered(self.units, gradients)


def remove(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Take the parameter `name` out; return its module and attribute."""
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    delattr(module, attribute)
    return module, attribute


# Fully sharded data parallelism (FSDP), with what makes it fast.
#
# Each unit is whole only while it computes: gathered before its forward pass,
# freed after it, gathered again before its backward pass; then its gradients
# are averaged and scattered. Meanwhile the next unit is on its way.
# Zhao et al. 2023, arXiv:2304.11277, sections 3.2 and 3.3.


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


# Deferred initialization: a model without memory, filled shard by shard.
#
# A model built under `torch.device("meta")` has shapes and no values. Here the
# calls that would have filled it (normal_, uniform_, fill_, …) are written
# down, to be replayed in the same order: the same random numbers, so the same
# weights. Zhao et al. 2023, arXiv:2304.11277, section 4.1.


class Recording(TorchDispatchMode):
    """Writes down each operator that changes a tensor in place."""

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
    """A model on the meta device, and how to fill it."""

    model: Any
    calls: list[tuple[Any, Tensor, Any, Any]] = field(repr=False)
    random_state: Tensor = field(repr=False)  # before the first call

    def replay(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the model with its values, as soon as final.

        Only tensors between their first and their last call are in memory.
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
    """Call `build()` on the meta device and write down its initialisation."""
    with torch.device("meta"), Recording() as recording:
        model = build()
    # Nothing was drawn on meta, so the generator is still where it started.
    return Deferred(model, recording.calls, torch.get_rng_state())
