"""What one pipeline rank does in a training step, in seconds, before it waits for the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from course_lib.theory.activations import (
    layer_activation_bytes,
    output_activation_bytes,
    recomputed_bytes,
)
from course_lib.theory.communication import AXES
from course_lib.theory.flops import MASKS, head_flops, layer_flops
from course_lib.theory.hardware import PCIE4, Cluster, Link
from course_lib.theory.layout import Layout
from course_lib.theory.models import TransformerShape
from course_lib.theory.recipe import Recipe
from course_lib.theory.states import LocalParameters, layer_kinds, local_parameters
from course_lib.theory.traffic import Habits, step_traffic
from course_lib.theory.units import MB
from course_lib.theory.validation import choice, number

# Fitted together to the ten rows of Narayanan et al. 2021, arXiv:2104.04473, table 1 (137 to 163
# TFLOP/s); other papers' steps are then predicted, in the tests.
LAYER_EFFICIENCY = 0.8
TOUCHES = 8
# Megatron-LM's buckets of 40 million fp32 gradients (DistributedDataParallelConfig.bucket_size):
# DDP's 25 MiB would wait for latencies in large clusters.
BUCKETS = Habits(bucket_bytes=160 * MB)
# Sums over tp and expert tokens are waited for, as is a pipeline's neighbour; ring attention and
# the exchange of gradients and parameters hide as far as there is something to hide behind.
OVERLAP = {"tp": 0.0, "cp": 1.0, "ep": 0.0, "dp": 1.0, "pp": 0.0}


@dataclass(frozen=True)
class Assumptions:
    """What no formula knows: how fast whole layers are, and what hides behind computing.

    `layer_efficiency`: rate of a layer's matmuls over that of the best one,
    `cluster.matmul_flop_per_s`. `touches`: how often each byte that is kept for the backward pass
    goes through the memory in norms, activations, softmax and their gradients. `mask`: pairs that
    attention computes and MFU counts, "causal" or "full"; None: causal under flash attention, which
    skips the others, full under standard attention. `overlap`: the largest part of an axis' time
    that may hide; what it hides behind is attention's scores for cp, one micro-batch for dp (all
    where every one of them exchanges: ZeRO-2 and 3) and all matmuls for tp, ep and pp. An axis
    that is not named keeps its default. `host_link`: the way to an offloaded optimizer.
    Raises ValueError for parts outside 0..1 and unknown names.
    """

    layer_efficiency: float = LAYER_EFFICIENCY
    touches: float = TOUCHES
    mask: str | None = None
    overlap: Mapping[str, float] = field(default_factory=dict)
    habits: Habits = BUCKETS
    host_link: Link = PCIE4

    def __post_init__(self) -> None:
        number("layer_efficiency", self.layer_efficiency, above=0, most=1)
        number("touches", self.touches, least=0)
        if self.mask is not None:
            choice("mask", self.mask, MASKS)
        for axis, part in self.overlap.items():
            choice("overlap axis", axis, AXES)
            number(f"overlap[{axis!r}]", part, least=0, most=1)
        object.__setattr__(self, "overlap", {**OVERLAP, **self.overlap})

    def attention_mask(self, recipe: Recipe) -> str:
        """The mask that is computed: `mask`, or what the attention kernel of `recipe` does."""
        return self.mask or ("causal" if recipe.attention == "flash" else "full")

    def exchanges_each_pass(self, zero_stage: int) -> bool:
        """Whether dp sends with every micro-batch, and so hides behind all of them."""
        return zero_stage >= 2 or not self.habits.no_sync


@dataclass(frozen=True)
class StageTime:
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


def stage_time(
    shape: TransformerShape,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    sequence: int,
    assumptions: Assumptions,
    stage: int,
) -> StageTime:
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
    return StageTime(
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
