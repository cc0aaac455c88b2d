"""What the theory tells of a sharded GPT, unit by unit: ZeRO at any stage, and FSDP.

A unit is a layer, or the root: all that is outside the layers. The theory knows no padding, which
is all that is added here. Our own units are padded as a whole to a multiple of n ranks, by
-P mod n; `fully_shard` pads each tensor along its first dimension.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from torch import nn

from course_lib.demos.shared.prediction import FP32, Stored, calls_of, stored_states, traffic
from course_lib.demos.shared.training import Training
from course_lib.scratch.deferred_init import defer
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import LocalParameters, local_parameters
from course_lib.theory.network.traffic import CommunicationPolicy
from course_lib.trace import Trace


@dataclass(frozen=True)
class Sharding:
    """A training whose model states are sharded as `layout` says; `by_tensor`: as `fully_shard`."""

    training: Training
    layout: Layout
    recipe: Recipe = FP32
    by_tensor: bool = False

    def units(self) -> dict[str, tuple[int, int, int]]:
        """How many units, parameters of each, and its padding: of the layers, and of the root."""
        local, layers = local_parameters(self.training.shape()), self.training.size[0]
        sizes = {"layers": (layers, local.layer_dense), "ends": (1, local.ends_dense)}
        return {
            place: (count, size, self._padding(place, size))
            for place, (count, size) in sizes.items()
        }

    def _padding(self, place: str, size: int) -> int:
        ranks = self.layout.dp
        if not self.by_tensor:
            return -size % ranks if self.layout.zero_stage else 0
        model = without_memory(self.training)
        inside = set(model.blocks.parameters())
        ends = [p for p in model.parameters() if p not in inside]
        tensors = ends if place == "ends" else list(model.blocks[0].parameters())
        return sum((-len(p) % ranks) * p[0].numel() for p in tensors)

    def told(self) -> Trace:
        """The calls of one update: the theory's, with a bucket for each unit."""
        return Trace(
            call
            for place, (_, size, padding) in self.units().items()
            for entry in traffic(
                self.training,
                self.layout,
                recipe=self.recipe,
                policy=CommunicationPolicy(bucket_bytes=self.recipe.gradient_bytes * size),
            ).collectives
            if entry.place == place
            for call in calls_of(entry, size, padding)
        )

    def stored(self, rank: int = 0) -> Stored:
        """Bytes that a rank keeps: the states of each unit, in fp32."""
        totals: Counter[str] = Counter()
        for count, size, padding in self.units().values():
            local = LocalParameters(size + padding * self.by_tensor)  # parts are rounded up anyway
            kept = stored_states(local, self.layout)
            if self.layout.zero_stage < 3:  # whole weights are padded, and nothing else
                kept["weights"] += FP32.weight_bytes * padding
            totals.update({what: count * bytes_ for what, bytes_ in kept.items()})
        if self.by_tensor:  # torch's optimizer has no states for padding
            parameters = without_memory(self.training).parameters()
            totals["optimizer"] = 8 * own_numbers(parameters, rank, self.layout.dp)
        return dict(totals)


def without_memory(training: Training) -> GPT:
    """The model on the meta device: shapes, and ties between them."""
    return cast(GPT, defer(lambda: training.build("meta")).model)


def own_numbers(parameters: Iterable[nn.Parameter], rank: int, ranks: int) -> int:
    """Numbers of tensors that are cut along their first dimension, without padding, on one rank."""
    own = 0
    for parameter in parameters:
        rows = -(-len(parameter) // ranks)
        own += min(rows, max(0, len(parameter) - rank * rows)) * parameter[0].numel()
    return own


def fsdp(
    training: Training, ranks: int, precision: str, reshard: bool = True, by_tensor: bool = False
) -> Sharding:
    """FSDP: units are gathered in `precision`, and gradients reduced in fp32."""
    layout, recipe = Layout(dp=ranks, zero_stage=3, reshard=reshard), wire_recipe(precision)
    return Sharding(training, layout, recipe, by_tensor)


def wire_recipe(precision: str) -> Recipe:
    """The precision in which units are gathered; gradients are always reduced in fp32."""
    return replace(FP32, compute=precision)
