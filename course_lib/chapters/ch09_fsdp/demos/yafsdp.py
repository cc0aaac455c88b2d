"""YaFSDP's preallocated buffers, and their memory beside FSDP's.

It is equal to one process, as mini-FSDP and `fully_shard` are. Two buffers for weights and two for
gradients are there from the start, so that a step asks for memory far less often. Peak and
allocations are counted over the tensors of one forward and backward pass.
Run it with `course demo yafsdp --ranks 2`, or under torchrun.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

from course_lib import launch
from course_lib.demos import fsdp as versions
from course_lib.demos.fsdp import FullyShard, Kind, MiniFSDP, Whole, Ya
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import option
from course_lib.demos.shared.prediction import Stored, calls, stored_states, wire_recipe
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.training import Training
from course_lib.measure.peak import log_memory
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import LocalParameters, local_parameters, sharding_buffers
from course_lib.trace import Trace


@dataclass(frozen=True)
class Options(versions.Options):
    """The options of the demo."""

    reshard: bool = option(True, "of the two others: free a layer after its forward pass")
    prefetch: bool = option(True, "of the two others: fetch the next layer while one computes")


@dataclass(frozen=True)
class Memory:
    """Tensors of one rank in the forward and backward pass of the third update."""

    name: str
    allocations: int  # storages created, or resized from empty
    peak_bytes: int
    start_bytes: int  # alive before the pass: shards, optimizer states, buffers
    timeline: list[int]  # bytes after each change


def main(options: Options) -> Result:
    """Train YaFSDP, and measure the memory of every version; each rank returns its own result."""
    rank, training = launch.init(), options.training()
    comparison = Comparison(training, clip=options.clip)
    recipe, sizes = wire_recipe(options.precision), sizes_of(training, rank.world)
    predicted_sent = predicted(sizes, recipe, options.clip > 0) if rank.world > 1 else None
    stored = buffered(sizes, recipe, rank.world)
    comparison.follow(Ya(options, rank), predicted_sent, stored)
    kinds: tuple[Kind, ...] = (Whole, MiniFSDP, Ya, FullyShard)
    memory = [measure_memory(kind, options, rank) for kind in kinds]
    # In addition to those that the model makes without sharding.
    allocations = {one.name: one.allocations - memory[0].allocations for one in memory}
    notes = [
        f"  {one.name:<13}{one.allocations:>6} allocations, {allocations[one.name]:>4} for "
        f"sharding; peak {one.peak_bytes:>11,} B, before it {one.start_bytes:>11,} B"
        for one in memory
    ]
    return comparison.result(
        "YaFSDP",
        notes=["memory of a forward and backward pass:", *notes],
        memory=memory,
        allocations=allocations,
        tolerances=versions.TOLERANCES[options.precision],
    )


def sizes_of(training: Training, ranks: int) -> list[int]:
    """Padded sizes, in parameters, of the units YaFSDP gathers, in the order of the forward pass.

    Embedding, positions, each layer, last norm, and the head, which is the embedding again.
    """
    local, shape = local_parameters(training.shape()), training.shape()
    positions, norm = shape.context * shape.hidden, 2 * shape.hidden
    layers = [local.layer_dense] * shape.layers
    sizes = [local.table, positions, *layers, norm, local.table]
    return [-(-size // ranks) * ranks for size in sizes]


def predicted(sizes: Sequence[int], recipe: Recipe, clipped: bool) -> Trace:
    """Predicted traffic; the last two units are gathered once: buffers keep them for backward."""
    gathers = [*sizes, *sizes[:-2]]
    return Trace(
        [
            *calls("all-gather", len(gathers), recipe.compute_bytes * sum(gathers)),
            *calls("reduce-scatter", len(sizes), recipe.gradient_bytes * sum(sizes)),
            *calls("all-reduce", int(clipped), 4),
        ]
    )


def buffered(sizes: Sequence[int], recipe: Recipe, ranks: int) -> Stored:
    """Predicted bytes of states and of the buffers, which are allocated even on one rank."""
    recipe = replace(recipe, gathering="yafsdp")
    local = LocalParameters(sum(sizes[:-1]), layer_dense=max(sizes))  # the head is the embedding
    buffers = sharding_buffers(local, recipe, Layout(dp=max(ranks, 2), zero_stage=3))
    return {
        **stored_states(local, Layout(dp=ranks, zero_stage=3)),
        "weight buffers": buffers["gathered_parameters_bytes"],
        "gradient buffers": buffers["gathered_gradients_bytes"],
    }


def measure_memory(kind: Kind, options: versions.Options, rank: launch.Rank) -> Memory:
    """Train a version for two updates, then log its tensors during the passes of a third one."""
    gc.collect()
    batches = options.training().batches(rank.device)
    with log_memory() as log:
        trainee = kind(options, rank)
        for batch in batches[:2]:
            trainee.backward(batch)
            trainee.update()
        mark = log.mark()
        trainee.backward(batches[2])
        passes = log.since(mark)
    return Memory(
        trainee.name, passes.allocations, passes.peak_bytes, passes.baseline_bytes, passes.timeline
    )
