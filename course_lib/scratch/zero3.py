"""ZeRO stage 3: weights are whole only while their layer computes.

Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3. The shortest form:
nothing is fetched ahead, and the computation waits for each gather.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.scratch import wire
from course_lib.scratch.zero import OptimizerPlace, Unit, Zero


class ShardedUnit(Unit):
    """A unit of which this rank keeps only its own part of the weights.

    The whole vector stays one tensor, of which the parameters, and what
    autograd saves, are views: only the memory behind it comes and goes.
    """

    def part(self) -> Tensor:
        return super().part().clone()

    def gather(self, *_: Any) -> None:
        """Fill the whole vector from all ranks, unless it is full."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole.nbytes)
            wire.start_all_gather(self.whole, self.own).wait()

    def free(self, *_: Any) -> None:
        """Give back the memory behind the whole vector."""
        self.whole.untyped_storage().resize_(0)

    def reduce(self) -> None:
        """As in `Unit`; once all gradients exist, the weights may go."""
        super().reduce()
        self.free()

    def publish(self) -> None:
        """Nothing is sent: the next forward pass gathers."""
        self.round()
        self.free()


class Zero3(Zero):
    """Trains `model` under ZeRO stage 3; the arguments are those of `Zero`.

    What is outside the layers stays whole from forward to backward.
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
        """Finish with the layers behind this one, then gather it."""
        if self.waiting is not None and unit not in self.waiting:
            raise RuntimeError(
                "a layer's backward pass begins after its gradients were "
                "reduced: give the layers in the order of the forward pass"
            )
        self.reduce_waiting(until=unit)
        unit.gather()
