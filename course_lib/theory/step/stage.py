"""What one pipeline rank does in a training step, in seconds, before it waits for the others."""

from dataclasses import dataclass, replace

from course_lib.theory.compute.flops import head_flops, layer_flops
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.activations import (
    layer_activation_bytes,
    output_activation_bytes,
    recomputed_bytes,
)
from course_lib.theory.memory.states import LocalParameters, layer_kinds, local_parameters
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import AXES
from course_lib.theory.step.assumptions import Assumptions


@dataclass(frozen=True)
class StageBusyTime:
    """Seconds of one update on pipeline rank `stage`, by leaf, messages as far as they show."""

    stage: int
    compute_s: float
    elementwise_s: float = 0.0
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0
    pp_s: float = 0.0
    dp_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def passes_s(self) -> float:
        """What repeats with every micro-batch: all but dp and the optimizer."""
        messages = self.tp_s + self.cp_s + self.ep_s + self.pp_s
        return self.compute_s + self.elementwise_s + messages


def stage_busy_time(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    sequence: int,
    assumptions: Assumptions,
    stage: int,
) -> StageBusyTime:
    """The leaves of one pipeline rank, the bubble left out."""
    habits = assumptions.habits
    traffic = step_traffic(shape, recipe, layout, sequence, cluster, stage, habits=habits)
    work = stage_work(shape, recipe, layout, sequence, assumptions, stage)
    rate = layer_rate(cluster, assumptions)
    compute, scores = work.flop / rate, work.scores_flop / rate
    each_pass = assumptions.exchanges_each_pass(layout.zero_stage)
    hides = dict.fromkeys(AXES, compute)
    hides |= {"cp": scores, "dp": compute if each_pass else compute / layout.accumulation}
    shown = {
        f"{axis}_s": exposed(seconds, assumptions.overlap[axis], hides[axis])
        for axis, seconds in traffic.seconds_by_axis.items()
    }
    local = local_parameters(shape, layout, stage)
    return StageBusyTime(
        stage,
        compute,
        work.memory_bytes / cluster.accelerator.memory_bytes_per_s,
        **shown,
        optimizer_s=update_seconds(local, recipe, layout, cluster, assumptions),
    )


def exposed(seconds: float, overlap: float, window_s: float) -> float:
    """What shows of messages of which a part `overlap` hides, but no longer than `window_s`."""
    return seconds - min(overlap * seconds, window_s)


def flop_conventions(recipe: Recipe, assumptions: Assumptions) -> tuple[str, str, str]:
    """mask, recompute and attention, as `flops` wants them."""
    return assumptions.attention_mask(recipe), recipe.recompute, recipe.attention


@dataclass(frozen=True)
class Work:
    """What one GPU computes: FLOP, those of attention's scores among them, bytes of elementwise."""

    flop: float = 0.0
    scores_flop: float = 0.0
    memory_bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        memory = self.memory_bytes + other.memory_bytes
        return Work(self.flop + other.flop, self.scores_flop + other.scores_flop, memory)

    def times(self, count: int) -> "Work":
        """`count` times the same."""
        return Work(count * self.flop, count * self.scores_flop, count * self.memory_bytes)


def layer_work(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int,
    assumptions: Assumptions,
    layer: int,
) -> Work:
    """One layer and micro-batch, forward and backward, on one GPU with the busiest experts.

    A third of the touches are in the forward pass, which recomputation repeats.
    """
    conventions = flop_conventions(recipe, assumptions)
    flops = layer_flops(shape, layer, layout.micro_batch, sequence, *conventions)
    again = 4 / 3 if recipe.recompute == "full" else 1  # experts are recomputed like all else
    extra = (recipe.imbalance - 1) * flops.experts_flop * again
    where = (layout.micro_batch, sequence, layout, layer)
    kept = layer_activation_bytes(shape, replace(recipe, recompute="none"), *where)
    touched = assumptions.touches * (kept + recomputed_bytes(shape, recipe, *where) / 3)
    gpus = layout.tp * layout.cp
    return Work((flops.hardware_flop + extra) / gpus, flops.scores_flop / gpus, touched)


def head_work(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int,
    assumptions: Assumptions,
) -> Work:
    """The last norm, the logits and the loss of one micro-batch, forward and backward."""
    flops = head_flops(shape, layout.micro_batch, sequence)
    kept = output_activation_bytes(shape, recipe, layout.micro_batch, sequence, layout)
    return Work(flops.hardware_flop / (layout.tp * layout.cp), 0.0, assumptions.touches * kept)


def stage_work(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    sequence: int,
    assumptions: Assumptions,
    stage: int,
) -> Work:
    """All layers of a pipeline rank, and the head on the last one, for all micro-batches."""
    chunks, sizes = layout.stage_chunks(stage), layout.chunk_layers(shape)
    where = (shape, recipe, layout, sequence, assumptions)
    total = Work()
    for chunk in chunks:
        start = sum(sizes[:chunk])
        for layer, count in layer_kinds(shape, start, start + sizes[chunk]):
            total += layer_work(*where, layer).times(count)
    if layout.chunks - 1 in chunks:
        total += head_work(*where)
    # DualPipe sends half of the micro-batches through each of its two chunks.
    return total.times(layout.accumulation // (2 if layout.schedule == "dualpipe" else 1))


def layer_rate(cluster: Cluster, assumptions: Assumptions) -> float:
    """FLOP per second that one GPU reaches in a layer's matmuls."""
    return cluster.matmul_flop_per_s * assumptions.layer_efficiency


def update_seconds(
    local: LocalParameters,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    assumptions: Assumptions,
) -> float:
    """The optimizer: reads and writes its part of all states once, at the memory's bandwidth.

    Offloaded: gradients go to the host and weights come back, over `host_link`, which takes longer
    than the host's own work (ZeRO-Offload, arXiv:2101.06840, section 4).
    """
    part = local.total
    if layout.zero_stage:
        part = -(-local.dense // layout.shard_ranks)
        part = part + -(-local.experts // layout.expert_shard_ranks)
    if recipe.offload == "optimizer":
        moved = part * (recipe.gradient_bytes + recipe.weight_bytes)
        return moved / assumptions.host_link.bytes_per_s
    return 2 * part * recipe.bytes_per_parameter / cluster.accelerator.memory_bytes_per_s
