"""ZeRO: data parallelism in which ranks do not all store the same.

Stage 1 shards the optimizer's states and the fp32 weights that it updates,
stage 2 also the gradients; `stage3` shards the weights as well.
Rajbhandari et al. 2020, arXiv:1910.02054, section 5.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.scratch import wire
from course_lib.scratch.replicas.ddp import after_backward
from course_lib.scratch.zero.flat import units_of
from course_lib.scratch.zero.offload import OptimizerPlace
from course_lib.scratch.zero.shard import Unit


class Zero:
    """Trains `model` under ZeRO stage 0 (plain data parallelism), 1 or 2.

    Gradients are summed over ranks and micro-batches, in their own precision:
    each rank's loss is its share of the mean loss. Each of `layers`, in the
    order of the forward pass, is a unit; frozen parameters stay as they are,
    whole on each rank. `optimizer` builds an optimizer from flat vectors, so
    it can have one group of parameters only, with one weight decay (else
    ValueError), and `place` is where it works. Nothing else may hold the
    model's weights or gradients: both are moved.
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
        # Not yet reduced in the backward pass that runs, None if none does.
        self.waiting: list[Unit] | None = None
        if stage >= 2:
            for unit in self.order:
                for parameter in unit.parameters:
                    parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, _: Tensor) -> None:
        """A gradient is there: reduce the units that are complete."""
        if self.waiting is None:  # the first one of this backward pass
            self.waiting = list(self.order)
            after_backward(self._finish)
        # One order on all ranks, even where a gradient never comes.
        while self.waiting and self.waiting[0].is_complete():
            self.waiting.pop(0).reduce()

    def reduce_waiting(self, until: Unit | None = None) -> None:
        """Reduce units before `until`; a gradient that never came is zero."""
        while self.waiting and self.waiting[0] is not until:
            self.waiting.pop(0).reduce()

    def _finish(self) -> None:
        self.reduce_waiting()
        self.waiting = None

    def reduce(self) -> None:
        """After an update's last backward: reduce what is not yet reduced."""
        for unit in self.units.values():
            if unit.gradient is None:
                unit.reduce()

    def step(self) -> None:
        """Update this rank's parts; then every rank gets all weights."""
        self.reduce()
        for unit in self.units.values():
            unit.master.grad = self.place.put(unit.reduced().float())
            unit.gradient = None
        self.optimizer.step()
        self.optimizer.zero_grad()
        for unit in self.units.values():
            unit.publish()


def own_norm(zero: Zero) -> Tensor:
    """Norm of this rank's parts of the gradient: differs between ranks."""
    parts = [unit.reduced().float() for unit in zero.units.values()]
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()


def global_norm(zero: Zero) -> Tensor:
    """Norm of the whole gradient: squares are summed over the ranks."""
    norm = own_norm(zero)
    return wire.all_reduce(norm.square()).sqrt() if zero.ranks > 1 else norm


def clip(
    zero: Zero, limit: float, norm: Callable[[Zero], Tensor] = global_norm
) -> Tensor:
    """Scale the gradient down to `limit`, between backward and `step`.

    Like torch.nn.utils.clip_grad_norm_. With `own_norm`, ranks would scale
    their parts differently, and the update would point in another direction.
    """
    zero.reduce()
    found = norm(zero)
    for unit in zero.units.values():
        unit.reduced().mul_((limit / (found + 1e-6)).clamp(max=1.0))
    return found
