"""The memory of one GPU of a pipeline, pass by pass, from a replay of its schedule.

`peak.gpu_memory` adds the maxima of each kind of memory. Activations and gradients do not always
peak at the same time: here they are allocated and freed in the order of the stage's passes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from course_lib.checked import checked
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory.activations import loss_temporary_bytes, output_activation_bytes
from course_lib.theory.memory.peak import (
    chunk_activations,
    largest_layer_bytes,
    layer_temporary_bytes,
    memory_moments,
)
from course_lib.theory.memory.states import (
    LocalParameters,
    MemoryBreakdown,
    chunk_parameters,
    sharded_states,
    sharding_buffers,
)
from course_lib.theory.pipelines.schedules import FORWARD, INPUT, WEIGHT, Pass, stage_order


class PassMemory(NamedTuple):
    """One pass, and the bytes of activations and of gradients after it.

    `chunk`: index of the chunk on this stage. `most_bytes`: peak of all memory on the GPU during
    the pass. `gradients_bytes` leaves out gradients that are allocated throughout.
    """

    kind: str
    micro_batch: int
    chunk: int
    activations_bytes: int
    gradients_bytes: int
    most_bytes: int


@dataclass(frozen=True)
class MemoryTimeline:
    """The passes of one stage in an update; `always`: memory that is allocated throughout.

    `update_bytes`: all memory on the GPU during the optimizer's update.
    """

    always: MemoryBreakdown
    passes: tuple[PassMemory, ...]
    update_bytes: int

    @cached_property
    def fullest(self) -> int:
        """Number of the pass with the highest peak, the earliest of equals."""
        return max(range(len(self.passes)), key=lambda number: self.passes[number].most_bytes)

    @property
    def peak_bytes(self) -> int:
        """Peak bytes, in a pass or in the optimizer's update."""
        return max(self.passes[self.fullest].most_bytes, self.update_bytes)


@checked
def memory_timeline(job: Job, stage: int = 0) -> MemoryTimeline:
    """Replay the passes of pipeline rank `stage`, with their allocations and frees.

    A forward pass stores its activations, and its backward pass (W where it is split) frees them.
    With gradient_life "backward" a chunk's gradients are allocated in its first backward pass.
    ZeRO-2 and 3 keep their shard until the update, and free the accumulated whole gradients when
    they are reduced: after the group or the last micro-batch; lower stages keep all of them. With
    gradient_life "always" all of these exist from the beginning. The peaks inside a backward pass
    are those of `memory_moments`. Equal to `gpu_memory`, or less where that is an upper bound.
    Raises ValueError for a stage that does not exist and a schedule of too many passes.
    """
    layout = job.layout
    moments = memory_moments(job, stage)
    zeros = dict.fromkeys(("inputs_bytes", "activations_bytes", "head_bytes", "temporary_bytes"), 0)
    always = replace(moments["loss"], **zeros)
    in_layers = moments["backward ends"].gathered_gradients_bytes - always.gathered_gradients_bytes
    late = job.recipe.gradient_life == "backward"
    if late:
        always = replace(always, gradients_bytes=0)
    if late and layout.adds_up:
        always = replace(always, gathered_gradients_bytes=0)
    order = stage_order(
        layout.schedule,
        stage,
        layout.pp,
        layout.accumulation,
        virtual_stages=layout.virtual_stages,
        group=layout.group,
    )
    local = [chunk_parameters(job.shape, layout, chunk) for chunk in layout.stage_chunks(stage)]
    # Shards are rounded up for the whole stage, not for each chunk.
    so_far = accumulate(
        local, lambda a, b: LocalParameters(a.dense + b.dense, a.experts + b.experts)
    )
    shards = [sharded_states(it, job.recipe, layout).gradients_bytes for it in so_far]
    kept = [late * (after - before) for before, after in pairwise([0, *shards])]
    chunks = list(map(partial(_chunk_costs, job, late), layout.stage_chunks(stage), local, kept))
    chunks = [it._replace(temporary=it.temporary + in_layers) for it in chunks]
    passes = tuple(_walk(job, order, chunks, always.total_bytes))
    return MemoryTimeline(always, passes, moments["update"].total_bytes)


class _ChunkCosts(NamedTuple):
    """Bytes of one chunk: stored by a micro-batch, needed in its backward pass, and gradients."""

    activations: int
    output: int  # the part of the activations that the loss frees first
    loss: int
    temporary: int
    layer: int
    kept_gradients: int  # allocated in the first backward pass, kept until the update
    whole_gradients: int  # allocated with them, freed when reduced


def _chunk_costs(
    job: Job, late: bool, chunk: int, local: LocalParameters, kept: int
) -> _ChunkCosts:
    layout = job.layout
    last = chunk == layout.chunks - 1
    whole = sharding_buffers(local, job.recipe, layout)["gathered_gradients_bytes"]
    return _ChunkCosts(
        activations=chunk_activations(job, chunk).total_bytes,
        output=last * output_activation_bytes(job),
        loss=last * loss_temporary_bytes(job),
        temporary=layer_temporary_bytes(job, (chunk,)),
        layer=largest_layer_bytes(job, (chunk,)),
        kept_gradients=kept,
        whole_gradients=late * layout.adds_up * whole,
    )


def _walk(
    job: Job, order: tuple[Pass, ...], chunks: list[_ChunkCosts], always: int
) -> Iterator[PassMemory]:
    """Yield the memory of each pass; the halves of an "F&B" run one after the other."""
    layout = job.layout
    together = layout.group or layout.pp if layout.reduces == "group" else layout.passes
    activations = kept = whole = 0
    finished: Counter[int] = Counter()  # backward passes of each chunk
    for work in (part for each in order for part in each.parts):
        chunk = chunks[work.chunk]
        if work.kind == FORWARD:
            activations += chunk.activations
            most = activations + kept + whole
        else:
            at_loss = activations + chunk.loss
            in_layer = activations - chunk.output + chunk.temporary
            most = kept + whole + max(at_loss, in_layer)
        if work.kind not in (FORWARD, INPUT):
            number = finished[work.chunk]
            kept += chunk.kept_gradients * (number == 0)
            whole += chunk.whole_gradients * (number % together == 0)
            activations -= chunk.activations
            last_layer = activations + chunk.layer + chunk.temporary
            most = max(most * (work.kind != WEIGHT), kept + whole + last_layer)
            finished[work.chunk] += 1
            done = finished[work.chunk]
            whole -= chunk.whole_gradients * (done % together == 0 or done == layout.passes)
        yield PassMemory(*work[:3], activations, kept + whole, always + most)
