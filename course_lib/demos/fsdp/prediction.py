"""What the theory says about fully sharded ranks: collectives, states, and what padding adds.

Units are the layers and the root, which is all the rest. Our own units are padded as a whole to a
multiple of n ranks: by -P mod n. `fully_shard` pads each tensor along its first dimension.
"""

from dataclasses import dataclass, replace
from typing import cast

from torch import nn

from course_lib.demos.shared.prediction import (
    FP32,
    Sent,
    Stored,
    add_calls,
    predicted_sent,
    stored_states,
    traffic,
)
from course_lib.demos.shared.training import Training
from course_lib.measure.wire import Total
from course_lib.scratch.fsdp.deferred_init import defer
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import LocalParameters, local_parameters, sharding_buffers


@dataclass(frozen=True)
class Units:
    """Parameters of the root and of one layer, and the padding of each."""

    layers: int
    root: int
    layer: int
    root_padding: int
    layer_padding: int

    @property
    def padded(self) -> int:
        """All parameters with all padding: what n ranks keep together."""
        layer = self.layer + self.layer_padding
        return self.root + self.root_padding + self.layers * layer


def flat_units(training: Training, ranks: int) -> Units:
    """Units that are padded as a whole."""
    local = local_parameters(training.shape())
    root, layer = local.ends_dense, local.layer_dense
    return Units(training.size[0], root, layer, -root % ranks, -layer % ranks)


def tensor_units(training: Training, ranks: int) -> Units:
    """Units of which each tensor is padded along its first dimension."""
    model = without_memory(training)
    inside = set(model.blocks.parameters())
    ends = [p for p in model.parameters() if p not in inside]
    return replace(
        flat_units(training, ranks),
        root_padding=_padding(ends, ranks),
        layer_padding=_padding(list(model.blocks[0].parameters()), ranks),
    )


def without_memory(training: Training) -> GPT:
    """The model on the meta device: shapes, and ties between them."""
    return cast(GPT, defer(lambda: training.build("meta")).model)


def _padding(parameters: list[nn.Parameter], ranks: int) -> int:
    return sum((-len(p) % ranks) * p[0].numel() for p in parameters)


def wire_recipe(precision: str) -> Recipe:
    """The precision in which units are gathered; gradients are always reduced in fp32."""
    return replace(FP32, compute=precision)


def sent(training: Training, units: Units, ranks: int, precision: str, reshard: bool) -> Sent:
    """Collectives of one update by `step_traffic`, and the padding of each."""
    if ranks == 1:
        return {}
    layout, recipe = Layout(dp=ranks, zero_stage=3, reshard=reshard), wire_recipe(precision)
    found = predicted_sent(traffic(training, layout, recipe=recipe))
    in_layers = units.layers * units.layer_padding
    gathered = units.root_padding + in_layers * (2 if reshard else 1)
    reduced = units.root_padding + in_layers
    add_calls(found, "all-gather", 0, recipe.compute_bytes * gathered)
    add_calls(found, "reduce-scatter", 0, recipe.gradient_bytes * reduced)
    return found


def stored(units: Units, ranks: int) -> Stored:
    """States of a rank: fp32, whatever is computed in."""
    return stored_states(LocalParameters(units.padded), Layout(dp=ranks, zero_stage=3))


def tensor_stored(training: Training, rank: int, ranks: int) -> Stored:
    """The same for `fully_shard`, whose optimizer has no states for padding."""
    own = 0
    for parameter in without_memory(training).parameters():
        rows = -(-len(parameter) // ranks)
        own += min(rows, max(0, len(parameter) - rank * rows)) * parameter[0].numel()
    kept = stored(tensor_units(training, ranks), ranks)
    return kept | {"optimizer": stored_states(LocalParameters(own), ALONE)["optimizer"]}


def yafsdp_sizes(training: Training) -> list[int]:
    """Parameters of what YaFSDP gathers, in the order of the forward pass.

    Embedding, positions, each layer, last norm, and the head, which is the embedding again.
    """
    local, shape = local_parameters(training.shape()), training.shape()
    positions, norm = shape.context * shape.hidden, 2 * shape.hidden
    layers = [local.layer_dense] * shape.layers
    return [local.table, positions, *layers, norm, local.table]


def yafsdp_sent(training: Training, ranks: int, precision: str) -> Sent:
    """Every piece twice, except the last two: the buffers still hold them when backward starts."""
    if ranks == 1:
        return {}
    recipe = wire_recipe(precision)
    sizes = [-(-size // ranks) * ranks for size in yafsdp_sizes(training)]
    gathers = [*sizes, *sizes[:-2]]
    return {
        "all-gather": Total(len(gathers), recipe.compute_bytes * sum(gathers)),
        "reduce-scatter": Total(len(sizes), recipe.gradient_bytes * sum(sizes)),
    }


def yafsdp_stored(training: Training, ranks: int, precision: str) -> Stored:
    """States, and buffers by `sharding_buffers`; each piece is padded as a whole.

    The buffers are there with one rank as well.
    """
    recipe = replace(wire_recipe(precision), gathering="yafsdp")
    sizes = [size + -size % ranks for size in yafsdp_sizes(training)]
    local = LocalParameters(sum(sizes[:-1]), layer_dense=max(sizes))  # the head is the embedding
    buffers = sharding_buffers(local, recipe, Layout(dp=max(ranks, 2), zero_stage=3))
    return {
        **stored_states(local, Layout(dp=ranks, zero_stage=3)),
        "weight buffers": buffers["gathered_parameters_bytes"],
        "gradient buffers": buffers["gathered_gradients_bytes"],
    }
