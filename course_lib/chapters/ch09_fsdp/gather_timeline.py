"""Memory of fully sharded data parallelism on one GPU after each change in a step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from course_lib.checked import checked
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.states import (
    LocalParameters,
    local_parameters,
    sharded_states,
    sharding_buffers,
)
from course_lib.theory.memory.unit_life import (
    GRADIENTS,
    ROOT,
    WEIGHTS,
    UnitCosts,
    changes,
    fsdp_calls,
)
from course_lib.trace import FREE, TAKE, Event, Trace
from course_lib.validation import flag, whole

Levels = tuple[tuple[float, int], ...]
_Kind = Annotated[str, (WEIGHTS, GRADIENTS)]


@dataclass(frozen=True)
class GatherTimeline:
    """Memory of a forward and a backward pass on one GPU: shards, and gathered units on top.

    The trace is that of `unit_life`, with the numbers of the changes as its times.
    """

    states_bytes: int
    layers: int
    trace: Trace
    all_gathers: int
    reduce_scatters: int

    @checked
    def levels(self, kinds: tuple[_Kind, ...] = (WEIGHTS, GRADIENTS)) -> Levels:
        """(number of a change, bytes after it) of "whole weights", "gradients" or both."""
        return Trace(e for e in self.trace if _kind(e) in kinds).levels(0)

    @property
    def peak_weights_bytes(self) -> int:
        """Peak bytes of whole weights."""
        return max(size for _, size in self.levels((WEIGHTS,)))

    @property
    def peak_gradients_bytes(self) -> int:
        """Peak bytes of whole gradients."""
        return max(size for _, size in self.levels((GRADIENTS,)))

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of shards and gathered units together; activations are not counted."""
        return self.states_bytes + max(size for _, size in self.levels())

    @property
    def changes(self) -> int:
        """Number of changes: each time memory is allocated or freed."""
        return len(self.levels())


@checked
def gather_timeline(
    shape: TransformerShape,
    recipe: Recipe,
    ranks: int,
    *,
    reshard: bool = True,
    prefetch: bool = True,
) -> GatherTimeline:
    """Memory of whole units on one GPU, from the first gather to the last reduction of a step.

    `recipe.gathering` "fsdp": each layer is gathered before its forward pass, freed after it and
    gathered again before its backward pass; the root stays whole throughout. `prefetch`: the next
    layer is gathered while one computes. `reshard` False: layers stay whole until their backward
    pass. A layer's gradients are copied into the precision in which they are reduced; that copy
    lives until the next layer's gradients are computed. The root's gradients are complete only at
    the end: the head's come first, the embedding's last. With L layers: 2L + 1 all-gathers (L + 1
    without reshard), L + 1 reduce-scatters. "yafsdp": four buffers throughout; every unit
    (embedding, positions, layers, norm, head) is gathered twice, except the last two.
    Peaks are those of `states.sharding_buffers` with gathered_units 1, 2 (prefetch) or L (not
    resharded). Padding, activations and allocator fragmentation are not counted.
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
        units = shape.layers + 3 + shape.learned_positions  # plus embedding, norm and head
        trace = Trace(_buffers(local, recipe, layout, shape.layers))
        return GatherTimeline(states, shape.layers, trace, 2 * units - 2, units)
    calls = fsdp_calls(shape.layers, prefetch=int(prefetch), reshard=reshard)
    trace = Trace(
        event._replace(at=number, end=number)
        for number, together in enumerate(_changes(local, recipe, shape.layers, calls))
        for event in together
    )
    sent = trace.sent()
    gathers, scatters = sent["all-gather"].calls, sent["reduce-scatter"].calls
    return GatherTimeline(states, shape.layers, trace, gathers, scatters)


def _kind(event: Event) -> str:
    """WEIGHTS or GRADIENTS for memory that is allocated or freed, "" for other events."""
    return event.part[0] if isinstance(event.part, tuple) else ""


def _changes(
    local: LocalParameters, recipe: Recipe, layers: int, calls: tuple[tuple[str, int], ...]
) -> Iterator[tuple[Event, ...]]:
    """The changes of `unit_life` in bytes; a tied table has two gradients and, added, their sum."""
    wide = recipe.compute_bytes
    ends, layer = local.ends_dense, local.layer_dense
    root = UnitCosts(0, 0, 0, 0, wide * ends, wide * ends, wide * local.head_dense)
    units = [root] + [UnitCosts(0, 0, 0, 0, wide * layer, wide * layer)] * layers
    copies = [recipe.gradient_bytes * count for count in (ends, *[layer] * layers)]
    *all_changes, gradients, copy = changes(units, calls, copies)
    for together in all_changes:
        if together[0].what == FREE and together[0].part == (WEIGHTS, ROOT):
            both = wide * (ends + 2 * local.tied_dense)
            taken = Event(0, 0, TAKE, (GRADIENTS, ROOT), bytes=both)
            yield taken, Event(0, 0, "backward", ROOT, label="0")
            together += (taken._replace(bytes=wide * ends),)
        yield together
    yield gradients + copy


def _buffers(
    local: LocalParameters, recipe: Recipe, layout: Layout, layers: int
) -> Iterator[Event]:
    """The events of YaFSDP, whose buffers are allocated once: the bytes never change."""
    sizes = sharding_buffers(local, recipe, layout)
    yield Event(0, 0, TAKE, (WEIGHTS, "buffers"), bytes=sizes["gathered_parameters_bytes"])
    yield Event(0, 0, TAKE, (GRADIENTS, "buffers"), bytes=sizes["gathered_gradients_bytes"])
    ahead, back = range(layers + 1), range(layers, -1, -1)
    passes = [("forward", unit) for unit in ahead] + [("backward", unit) for unit in back]
    for number, (what, unit) in enumerate(passes):
        yield Event(number, 0, what, unit, label=str(unit))
