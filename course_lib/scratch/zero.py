"""ZeRO: model states sharded over data-parallel ranks, stages 1 to 3."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.scratch import wire
from course_lib.scratch.ddp import after_backward

# Flattening several tensors into one vector, to send in one collective.


def units_of(
    model: nn.Module, layers: Iterable[nn.Module]
) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Each layer with its parameters, then `model` with the remaining ones.

    A parameter shared by two layers belongs to the first one; a frozen one
    (`requires_grad` False) belongs to none.
    """
    units, seen = [], set()
    for module in [*layers, model]:
        trained = [p for p in module.parameters() if p.requires_grad]
        new = [p for p in trained if p not in seen]
        seen.update(new)
        units.append((module, new))
    return [(module, parameters) for module, parameters in units if parameters]


def flatten(tensors: Sequence[Tensor], ranks: int) -> Tensor:
    """One vector of all elements, zero-padded until `ranks` divides it."""
    pieces = [tensor.detach().flatten() for tensor in tensors]
    missing = -sum(map(len, pieces)) % ranks
    return torch.cat([*pieces, pieces[0].new_zeros(missing)])


def views(
    flat: Tensor, like: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each tensor of `like` with its view of `flat`, in its shape."""
    start = 0
    for tensor in like:
        piece = flat[start : start + tensor.numel()]
        start += tensor.numel()
        yield tensor, piece.view(tensor.shape)


# Where the optimizer runs: on the device, or offloaded to the host.


class OptimizerPlace:
    """The optimizer runs on the device itself: nothing is copied."""

    def put(self, tensor: Tensor) -> Tensor:
        """`tensor` on the optimizer's device."""
        return tensor

    def fetch(self, source: Tensor, target: Tensor) -> None:
        """Copy the optimizer's `source` into the device's `target`."""
        target.copy_(source)


class Host(OptimizerPlace):
    """Offloads the optimizer to host memory, and counts bytes copied.

    Gradients go to the host and updated weights come back; optimizer states
    and fp32 weights stay there. On a CPU device the copies are still made.
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


# A vector of parameters of which each rank owns one part.
#
# n ranks. A unit of P parameters is one vector, padded with zeros to n·s, with
# s = ceil(P / n); rank r owns elements r·s to (r+1)·s of it.
#
# FSDP shards the same vector identically (`scratch.flat_parameter`), but it
# is whole only during a pass, so parameters are stored by name and shape.
# Here the vector exists from the start, and parameters are views of it.


class Unit:
    """Parameters communicated together: a layer's, or all remaining ones."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        ranks: int,
        place: OptimizerPlace | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self.place = place or OptimizerPlace()
        self.ranks = ranks  # number of shards; 1 if each rank owns all of it
        self.whole = flatten(self.parameters, ranks)  # (n·s)
        for parameter, view in views(self.whole, self.parameters):
            parameter.data = view
        self.own = self.part()  # (s)
        # In fp32 on the device this is the part itself, otherwise a copy.
        self.master = nn.Parameter(self.place.put(self.own.float()))
        self.gradient: Tensor | None = None  # (s), summed over ranks

    def part(self) -> Tensor:
        """This rank's part of the weights."""
        return self.whole.chunk(self.ranks)[dist.get_rank() % self.ranks]

    def reduce(self) -> None:
        """Sum gradients over ranks, keeping only this rank's part."""
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in self.parameters
        ]
        collective = wire.reduce_scatter if self.ranks > 1 else wire.all_reduce
        part = collective(flatten(gradients, self.ranks))
        self.gradient = part if self.gradient is None else self.gradient + part
        for parameter in self.parameters:
            parameter.grad = None

    def reduced(self) -> Tensor:
        """The gradient (s) computed by `reduce`."""
        assert self.gradient is not None, "reduce comes first"
        return self.gradient

    def is_complete(self) -> bool:
        """Whether backward has computed all gradients of the unit."""
        return all(p.grad is not None for p in self.parameters)

    def publish(self) -> None:
        """Gather the updated weights from all ranks."""
        self.round()
        if self.ranks > 1:
            wire.start_all_gather(self.whole, self.own).wait()

    def round(self) -> None:
        """Copy the fp32 master part into the weights, if it is separate."""
        if self.master.data_ptr() != self.own.data_ptr():
            self.place.fetch(self.master.detach(), self.own)


# ZeRO: data parallelism without redundant model states.
#
# Stage 1 shards the optimizer's states and the fp32 weights that it updates,
# stage 2 also the gradients; `stage3` shards the weights as well.
# Rajbhandari et al. 2020, arXiv:1910.02054, section 5.


class Zero:
    """Trains `model` under ZeRO stage 0 (plain data parallelism), 1 or 2.

    Gradients are summed over ranks and micro-batches, in their own precision:
    each rank's loss is its share of the mean loss. Each of `layers`, in the
    order of the forward pass, is a unit; frozen parameters stay replicated.
    `optimizer` builds an optimizer from flat vectors, so it can have only one
    parameter group, with one weight decay (else ValueError), and `place` is
    where it runs. Nothing else may hold references to the model's weights or
    gradients: both are reallocated.
    """

    unit: type[Unit] = Unit

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[nn.Module],
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        stage: int = 1,
        place: OptimizerPlace | None = None,
    ) -> None:
        self.ranks = dist.get_world_size() if stage else 1
        self.place = place or OptimizerPlace()
        self.units = {
            module: self.unit(parameters, self.ranks, self.place)
            for module, parameters in units_of(model, layers)
        }
        self.optimizer = optimizer([u.master for u in self.units.values()])
        if (groups := len(self.optimizer.param_groups)) > 1:
            raise ValueError(
                f"the optimizer has {groups} groups of parameters: a unit is "
                "one flat vector of weights, norms and biases; give them one "
                "group, or train with fully_shard, which cuts each tensor"
            )
        # Backward goes from the last layer to the first, then to the rest.
        backward = sorted(reversed(self.units), key=lambda m: m is model)
        self.order = [self.units[module] for module in backward]
        # Units still to reduce in the running backward pass; None outside it.
        self.waiting: list[Unit] | None = None
        if stage >= 2:
            for unit in self.order:
                for parameter in unit.parameters:
                    parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, _: Tensor) -> None:
        """Called for each computed gradient: reduces complete units."""
        if self.waiting is None:  # the first one of this backward pass
            self.waiting = list(self.order)
            after_backward(self._finish)
        # The same order on all ranks, even where a gradient is missing.
        while self.waiting and self.waiting[0].is_complete():
            self.waiting.pop(0).reduce()

    def reduce_waiting(self, until: Unit | None = None) -> None:
        """Reduce units before `until`; missing gradients count as zero."""
        while self.waiting and self.waiting[0] is not until:
            self.waiting.pop(0).reduce()

    def _finish(self) -> None:
        self.reduce_waiting()
        self.waiting = None

    def reduce(self) -> None:
        """Reduce the remaining units, after an update's last backward."""
        for unit in self.units.values():
            if unit.gradient is None:
                unit.reduce()

    def step(self) -> None:
        """Update this rank's parts, then share the weights with all ranks."""
        self.reduce()
        for unit in self.units.values():
            unit.master.grad = self.place.put(unit.reduced().float())
            unit.gradient = None
        self.optimizer.step()
        self.optimizer.zero_grad()
        for unit in self.units.values():
            unit.publish()


def own_norm(zero: Zero) -> Tensor:
    """Norm of this rank's shard of the gradient; differs between ranks."""
    parts = [unit.reduced().float() for unit in zero.units.values()]
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()


def global_norm(zero: Zero) -> Tensor:
    """Norm of the whole gradient: squares are summed over the ranks."""
    norm = own_norm(zero)
    return wire.all_reduce(norm.square()).sqrt() if zero.ranks > 1 else norm


def clip(
    zero: Zero, limit: float, norm: Callable[[Zero], Tensor] = global_norm
) -> Tensor:
    """Clip the gradient norm to `limit`, between backward and `step`.

    Like torch.nn.utils.clip_grad_norm_; returns the norm. With `own_norm`,
    ranks would scale their shards differently and change the direction.
    """
    zero.reduce()
    found = norm(zero)
    for unit in zero.units.values():
        unit.reduced().mul_((limit / (found + 1e-6)).clamp(max=1.0))
    return found


# Weight decay for matrices only, with all weights in one flat vector.


def marks(unit: Unit) -> Tensor:
    """1 where an element of this rank's part decays, else 0 (s).

    Matrices decay; norms, biases and the padding do not.
    """
    whole = [
        torch.full_like(p, float(p.ndim > 1), dtype=torch.float32)
        for p in unit.parameters
    ]
    parts = flatten(whole, unit.ranks).chunk(unit.ranks)
    return parts[dist.get_rank() % unit.ranks]


@torch.no_grad()
def decay(zero: Zero, rate: float) -> None:
    """Before `zero.step()`: w ← w · (1 − rate · mark), on this rank's part.

    `rate` is learning rate · weight decay, as in AdamW, whose own decay must
    be 0. Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """
    for unit in zero.units.values():
        unit.master.mul_(1 - rate * marks(unit).to(unit.master.device))


# Stage 3: weights are whole only while their layer computes.
#
# Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3. The simplest form:
# nothing is prefetched, and the computation waits for each gather.


class ShardedUnit(Unit):
    """A unit of which this rank keeps only its own shard of the weights.

    The full vector stays one tensor, and parameters and tensors saved by
    autograd stay views of it: only its storage is allocated and freed.
    """

    def part(self) -> Tensor:
        return super().part().clone()

    def gather(self, *_: Any) -> None:
        """All-gather the full vector, unless it is allocated already."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.nbytes)
            wire.start_all_gather(self.whole, self.own).wait()

    def free(self, *_: Any) -> None:
        """Free the storage of the full vector."""
        self.whole.untyped_storage().resize_(0)

    def reduce(self) -> None:
        """As in `Unit`, then free the weights: all gradients are computed."""
        super().reduce()
        self.free()

    def publish(self) -> None:
        """Nothing is sent: the next forward pass gathers."""
        self.round()
        self.free()


class Zero3(Zero):
    """Trains `model` under ZeRO stage 3; the arguments are those of `Zero`.

    Parameters outside the layers stay whole from forward to backward.
    """

    unit = ShardedUnit

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[nn.Module],
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        place: OptimizerPlace | None = None,
    ) -> None:
        super().__init__(model, layers, optimizer, stage=3, place=place)
        for module, unit in self.units.items():
            assert isinstance(unit, ShardedUnit)
            module.register_forward_pre_hook(unit.gather)
            if module is not model:
                module.register_forward_hook(unit.free)
                hook = partial(self.before_backward, unit)
                module.register_full_backward_pre_hook(hook)
            unit.free()

    def before_backward(self, unit: ShardedUnit, *_: Any) -> None:
        """Reduce the layers after this one, then gather it."""
        if self.waiting is not None and unit not in self.waiting:
            raise RuntimeError(
                "a layer's backward pass begins after its gradients were "
                "reduced: give the layers in the order of the forward pass"
            )
        self.reduce_waiting(until=unit)
        unit.gather()
