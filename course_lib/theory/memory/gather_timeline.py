"""What fully sharded data parallelism holds on one GPU, change by change, in one step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from course_lib.checked import checked
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.states import (
    LocalParameters,
    local_parameters,
    sharded_states,
    sharding_buffers,
)
from course_lib.validation import flag, whole

ROOT = 0  # the unit of all that is outside the layers; layers are units 1, 2, …


@dataclass(frozen=True)
class GatherEvent:
    """One change, and the bytes of whole weights and whole gradients after it.

    `phase` is "forward" or "backward"; `action` "gather", "fetch" (gather ahead), "compute",
    "free", "reduce" or "done".
    """

    phase: str
    action: str
    unit: int
    weights_bytes: int
    gradients_bytes: int

    @property
    def gathered_bytes(self) -> int:
        """Both together: what is there beside the shards."""
        return self.weights_bytes + self.gradients_bytes


@dataclass(frozen=True)
class GatherTimeline:
    """A forward and a backward pass on one GPU: shards below, gathered units on top of them."""

    states_bytes: int
    layers: int
    events: tuple[GatherEvent, ...]
    all_gathers: int
    reduce_scatters: int

    @property
    def peak_weights_bytes(self) -> int:
        """The most whole weights at one moment."""
        return max(event.weights_bytes for event in self.events)

    @property
    def peak_gradients_bytes(self) -> int:
        """The most whole gradients at one moment."""
        return max(event.gradients_bytes for event in self.events)

    @property
    def peak_bytes(self) -> int:
        """Shards and what is gathered at the worst moment; activations are not counted."""
        return self.states_bytes + max(event.gathered_bytes for event in self.events)

    @property
    def changes(self) -> int:
        """How often the bytes change: each time memory is taken or given back."""
        held = [0, *(event.gathered_bytes for event in self.events)]
        return sum(after != before for before, after in pairwise(held))

    def explain(self, unit: str = "GB") -> str:
        """Base, both peaks, and the collectives, one line each."""
        sizes = {
            "shards, always": self.states_bytes,
            "whole weights, at most": self.peak_weights_bytes,
            "whole gradients, at most": self.peak_gradients_bytes,
            "peak": self.peak_bytes,
        }
        lines = [f"{name:<26}{format_bytes(size, unit):>12}" for name, size in sizes.items()]
        return "\n".join(
            [*lines, f"{self.all_gathers} all-gathers, {self.reduce_scatters} reduce-scatters"]
        )


@checked
def gather_timeline(
    shape: TransformerShape,
    recipe: Recipe,
    ranks: int,
    *,
    reshard: bool = True,
    prefetch: bool = True,
) -> GatherTimeline:
    """The units of one GPU that are whole, from the first gather to the last reduction.

    `recipe.gathering` "fsdp": each layer is gathered before its forward pass, freed after it and
    gathered again before its backward pass; the root is whole from beginning to end. `prefetch`:
    the next layer comes while one computes. `reshard` False: layers stay until their backward
    pass. A layer's gradients are copied into the precision in which they are reduced; that copy
    lives until the next layer's gradients are there. Of the root's gradients the head's come first
    and wait for the embedding's, which come last. With L layers: 2L + 1 all-gathers (L + 1 without
    reshard), L + 1 reduce-scatters. "yafsdp": four buffers, from beginning to end; every unit
    (embedding, positions, layers, norm, head) twice but the last two.
    Peaks are those of `states.sharding_buffers` with gathered_units 1, 2 (prefetch) or L (not
    resharded). Padding, activations and whatever an allocator loses are not counted.
    Source: Zhao et al. 2023, arXiv:2304.11277, section 3; github.com/yandex/YaFSDP, version 1.
    Raises ValueError for one rank, which gathers nothing, and for a mixture of experts.
    """
    whole("ranks", ranks, least=2)
    flag("reshard", reshard)
    flag("prefetch", prefetch)
    if shape.experts:
        raise ValueError(
            f"experts {shape.experts}: layers with and without experts differ: take a dense model"
        )
    layout = Layout(dp=ranks, zero_stage=3)
    local = local_parameters(shape)
    states = sharded_states(local, recipe, layout).model_states_bytes
    if recipe.gathering == "yafsdp":
        units = shape.layers + 3 + shape.learned_positions  # embedding, norm and head beside them
        events = _buffers(local, recipe, layout, shape.layers)
        return GatherTimeline(states, shape.layers, events, 2 * units - 2, units)
    held = _Held(local, recipe)
    events = tuple(_fsdp(held, shape.layers, reshard, prefetch))
    gathers = sum(event.action in ("gather", "fetch") for event in events)
    return GatherTimeline(states, shape.layers, events, gathers, shape.layers + 1)


def _buffers(
    local: LocalParameters, recipe: Recipe, layout: Layout, layers: int
) -> tuple[GatherEvent, ...]:
    """YaFSDP: the same bytes at every moment."""
    sizes = sharding_buffers(local, recipe, layout)
    bytes_ = sizes["gathered_parameters_bytes"], sizes["gathered_gradients_bytes"]
    there = [("forward", unit) for unit in range(layers + 1)]
    back = [("backward", unit) for unit in range(layers, -1, -1)]
    return tuple(GatherEvent(phase, "compute", unit, *bytes_) for phase, unit in there + back)


class _Held:
    """Which units are whole, and the bytes of gradients on their way."""

    def __init__(self, local: LocalParameters, recipe: Recipe) -> None:
        self.local, self.recipe = local, recipe
        self.units: set[int] = set()
        self.weights = self.gradients = 0

    def event(self, phase: str, action: str, unit: int) -> GatherEvent:
        return GatherEvent(phase, action, unit, self.weights, self.gradients)

    def size(self, unit: int) -> int:
        """Bytes of a whole unit, in the precision in which it is gathered."""
        return self.wide(self.local.ends_dense if unit == ROOT else self.local.layer_dense)

    def wide(self, count: int) -> int:
        """Bytes of `count` whole weights or gradients."""
        return count * self.recipe.compute_bytes

    def take(self, phase: str, action: str, unit: int) -> Iterator[GatherEvent]:
        """Gather a unit, unless it is here."""
        if unit not in self.units:
            self.units.add(unit)
            self.weights += self.size(unit)
            yield self.event(phase, action, unit)

    def free(self, phase: str, unit: int) -> GatherEvent:
        self.units.remove(unit)
        self.weights -= self.size(unit)
        return self.event(phase, "free", unit)


def _fsdp(held: _Held, layers: int, reshard: bool, prefetch: bool) -> Iterator[GatherEvent]:
    yield from held.take("forward", "gather", ROOT)
    for layer in range(1, layers + 1):
        yield from held.take("forward", "gather", layer)
        if prefetch and layer < layers:
            yield from held.take("forward", "fetch", layer + 1)
        yield held.event("forward", "compute", layer)
        if reshard:
            yield held.free("forward", layer)
    # Backward begins at the head, whose gradient waits for that of the embedding.
    held.gradients += held.wide(held.local.head_dense)
    yield held.event("backward", "compute", ROOT)
    copy = held.local.layer_dense * held.recipe.gradient_bytes
    on_the_way = 0
    for layer in range(layers, 0, -1):
        yield from held.take("backward", "gather", layer)
        if prefetch and layer > 1:
            yield from held.take("backward", "fetch", layer - 1)
        held.gradients += held.size(layer)
        yield held.event("backward", "compute", layer)
        yield held.free("backward", layer)
        held.gradients += copy - on_the_way  # one reduction at a time
        on_the_way = copy
        yield held.event("backward", "reduce", layer)
        held.gradients -= held.size(layer)
        yield held.event("backward", "done", layer)
    tied = held.wide(held.local.tied_dense)
    held.gradients = on_the_way + held.size(ROOT) + 2 * tied  # both of a tied table, and their sum
    yield held.event("backward", "compute", ROOT)
    held.gradients -= 2 * tied
    yield held.free("backward", ROOT)
    held.gradients += held.local.ends_dense * held.recipe.gradient_bytes - on_the_way
    yield held.event("backward", "reduce", ROOT)
    held.gradients = 0
    yield held.event("backward", "done", ROOT)
