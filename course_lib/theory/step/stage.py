"""What hiding messages behind computing saves, and what it costs: one model for all axes.

A message under way takes from the computing beside it whatever is scarcer: the multiprocessors
(SMs) that its kernel holds, or the memory bandwidth that its bytes use. In t seconds it sends B
bytes and takes

    taken = max(message_sms · t, message_touches · B / memory bandwidth), at most t.

So hiding it saves t - taken. All axes share one window: they hide one after another, in
`HIDING_ORDER`, each behind the computing that the axes before it have left. Messages that may hide,
t in all, beside C seconds of computing thus take max(t, C + taken).

Measured by Lee et al. 2025, arXiv:2507.03114, on nodes of 4 A100, H100, MI210 and MI250: computing
gets 18.9 % longer beside messages, and one after the other takes 10.2 % longer than side by side.
So a second of hidden messages takes 0.6 s from computing there; the formula says 0.4 to 0.5 on
NVLink. On a slow network it is message_sms.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from operator import add
from typing import Annotated, Any

from course_lib.checked import CountOrZero, Positive, check_public
from course_lib.theory.compute.budget import ABSURD_FLOP
from course_lib.theory.compute.flops import attention_flop, head_flops, layer_flops
from course_lib.theory.inputs import Cluster, Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory.activations import (
    needed_terms,
    output_activation_bytes,
    recomputed_bytes,
)
from course_lib.theory.memory.states import (
    LocalParameters,
    local_parameters,
    shard_parameters,
    updated_parameters,
)
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.step.assumptions import Assumptions
from course_lib.validation import number

# What is small and hides in every layer goes first; dp has what is left of its window.
HIDING_ORDER = ("cp", "tp", "ep", "pp", "dp")


@dataclass(frozen=True)
class Hideable:
    """Messages of one axis that may hide: seconds, bytes sent in them, and the window.

    `window_s`: computing to hide behind. Numbers, or numpy's arrays of them.
    """

    seconds: Any
    sent_bytes: Any
    window_s: Any

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float | int):
                number(name, value, least=0)

    def saved_s(
        self,
        assumptions: Assumptions,
        axis: Annotated[str, HIDING_ORDER],
        memory_bytes_per_s: Positive,
    ) -> Any:
        """By how much the step gets shorter because messages of `axis` hide.

        overlap · (seconds - taken), but never more than the window: see above.
        """
        held = assumptions.message_sms * self.seconds
        moved = assumptions.message_touches * self.sent_bytes / memory_bytes_per_s
        gained = self.seconds - _least(self.seconds, -_least(-held, -moved))
        return _least(assumptions.overlap[axis] * gained, self.window_s)


def _least(one: Any, other: Any) -> Any:
    """The smaller of two numbers; of two of numpy's arrays place by place."""
    return min(one, other) if isinstance(one, (int, float)) else one.clip(None, other)


# --- What one pipeline rank does in a training step, in seconds, before it waits for the others ---


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
    accumulation_s: float = 0.0
    optimizer_s: float = 0.0

    @property
    def communication_s(self) -> float:
        """Messages that nothing hides, all axes together."""
        return self.tp_s + self.cp_s + self.ep_s + self.pp_s + self.dp_s

    @property
    def passes_s(self) -> float:
        """What repeats with every micro-batch, but for dp and for adding up gradients."""
        messages = self.tp_s + self.cp_s + self.ep_s + self.pp_s
        return self.compute_s + self.elementwise_s + messages

    @property
    def total_s(self) -> float:
        """The sum of the leaves."""
        return self.passes_s + self.dp_s + self.accumulation_s + self.optimizer_s


def chunk_kinds(shape: TransformerShape, layout: Layout) -> list[tuple[int, int]]:
    """Layers with one MLP, and with experts, of each chunk in the order of the model."""
    counts = layout.chunk_layers(shape)
    dense = shape.dense_layers if shape.experts else shape.layers
    starts = [0, *accumulate(counts[:-1])]
    one_mlp = [
        min(count, max(0, dense - start)) for count, start in zip(counts, starts, strict=True)
    ]
    return [(one, count - one) for one, count in zip(one_mlp, counts, strict=True)]


def alike_stages(shape: TransformerShape, layout: Layout) -> dict[int, int]:
    """How many pipeline ranks compute and send alike, by the first of them.

    Their chunks have as many layers of each kind, and they hold the same ends.
    """
    kinds = chunk_kinds(shape, layout)
    found: dict[tuple[object, ...], list[int]] = {}
    for stage in range(layout.pp):
        chunks = sorted(kinds[chunk] for chunk in layout.stage_chunks(stage))
        found.setdefault((*chunks, layout.holds_ends(stage)), []).append(stage)
    return {stages[0]: len(stages) for stages in found.values()}


def stage_busy_time(job: Job, assumptions: Assumptions, stage: int) -> StageBusyTime:
    """The leaves of one pipeline rank, the bubble left out."""
    return _Step(job, assumptions).busy_time(stage)


def stage_busy_times(
    job: Job, assumptions: Assumptions, stages: tuple[int, ...]
) -> list[StageBusyTime]:
    """Those of several pipeline ranks: what they have in common is computed once."""
    step = _Step(job, assumptions)
    return [step.busy_time(stage) for stage in stages]


_Amount = Annotated[float, partial(number, least=0, most=ABSURD_FLOP)]


@dataclass(frozen=True)
class Work:
    """What one GPU computes: FLOP of matmuls, of the attention kernel, bytes of elementwise."""

    matmul_flop: _Amount = 0.0
    attention_flop: _Amount = 0.0
    memory_bytes: _Amount = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*map(add, vars(self).values(), vars(other).values()))

    def times(self, count: CountOrZero) -> "Work":
        """`count` times the same."""
        return Work(*(count * value for value in vars(self).values()))


def layer_work(job: Job, assumptions: Assumptions, layer: int) -> Work:
    """One layer and micro-batch, forward and backward, on one GPU with the busiest experts.

    A third of the touches are in the forward pass, which recomputation repeats.
    """
    recipe, layout = job.recipe, job.layout
    conventions = assumptions.flop_conventions(recipe)
    flops = layer_flops(job.shape, layer, layout.micro_batch, job.sequence, **conventions)
    again = 4 / 3 if recipe.recompute == "full" else 1  # experts are recomputed like all else
    extra = (recipe.imbalance - 1) * flops.experts_flop * again
    needed = needed_terms(job, layer).total_bytes
    touched = assumptions.touches * (needed + recomputed_bytes(job, layer) / 3)
    attention = attention_flop(job.shape, flops, recipe.recompute, recipe.attention)
    gpus = layout.tp * layout.cp
    return Work((flops.hardware_flop - attention + extra) / gpus, attention / gpus, touched)


def head_work(job: Job, assumptions: Assumptions) -> Work:
    """The last norm, the logits and the loss of one micro-batch, forward and backward."""
    layout = job.layout
    flops = head_flops(job.shape, layout.micro_batch, job.sequence)
    touched = assumptions.touches * output_activation_bytes(job)
    return Work(flops.hardware_flop / (layout.tp * layout.cp), 0.0, touched)


def stage_work(job: Job, assumptions: Assumptions, stage: int) -> Work:
    """All layers of a pipeline rank, and the head on the last one, for all micro-batches."""
    return _Step(job, assumptions).work(stage)


@dataclass(frozen=True)
class _Step:
    """A job under assumptions, with what all its stages have in common."""

    job: Job
    assumptions: Assumptions

    @cached_property
    def sent(self) -> Job:
        """The job on links as fast as collectives are on them."""
        return replace(self.job, cluster=self.assumptions.reached(self.job.cluster))

    @cached_property
    def known(self) -> dict[tuple[str, int], Work]:
        """What one layer of each kind does, with each kind of recomputation, once it was asked."""
        return {}

    def work(self, stage: int) -> Work:
        """What `stage_work` says."""
        layout, total = self.job.layout, Work()
        for chunk in layout.stage_chunks(stage):
            for job, layer, count in self.job.layers_of(chunk):
                key = job.recipe.recompute, layer
                if key not in self.known:
                    self.known[key] = layer_work(job, self.assumptions, layer)
                total += self.known[key].times(count)
        if layout.holds_ends(stage)[1]:
            total += head_work(self.job, self.assumptions)
        return total.times(layout.passes)

    def busy_time(self, stage: int) -> StageBusyTime:
        """What `stage_busy_time` says."""
        job, assumptions = self.job, self.assumptions
        layout, chip = job.layout, job.cluster.accelerator
        traffic = step_traffic(self.sent, stage, policy=assumptions.policy)
        work = self.work(stage)
        attention = work.attention_flop / attention_rate(job.cluster, assumptions, job.recipe)
        compute = work.matmul_flop / layer_rate(job.cluster, assumptions) + attention
        elementwise = work.memory_bytes / chip.memory_bytes_per_s
        passes = 1 if layout.exchanges_each_pass else layout.accumulation  # of which one hides dp
        left, shown = compute + elementwise, traffic.waited_by_axis
        for axis in HIDING_ORDER:
            if axis not in shown:
                continue
            window = {"cp": attention, "dp": left / passes}.get(axis, left)
            hides = Hideable(*traffic.hideable_by_axis[axis], window)
            saved = hides.saved_s(assumptions, axis, chip.memory_bytes_per_s)
            left, shown[axis] = left - saved, shown[axis] - saved
        local = local_parameters(job.shape, layout, stage)
        sums = layout.passes if layout.accumulation > 1 else 0
        return StageBusyTime(
            stage,
            compute_s=compute,
            elementwise_s=elementwise,
            accumulation_s=sums * accumulation_seconds(job, local),
            optimizer_s=update_seconds(job, assumptions, local),
            **{f"{axis}_s": seconds for axis, seconds in shown.items()},
        )


def layer_rate(cluster: Cluster, assumptions: Assumptions) -> float:
    """FLOP per second that one GPU reaches in a layer's matmuls."""
    chip = cluster.accelerator
    return cluster.matmul_flop_per_s * (assumptions.layer_efficiency or chip.layer_efficiency)


def attention_rate(cluster: Cluster, assumptions: Assumptions, recipe: Recipe) -> float:
    """FLOP per second of the attention kernel; standard attention is matmuls like the others."""
    if recipe.attention == "standard":
        return layer_rate(cluster, assumptions)
    chip = cluster.accelerator
    share = assumptions.attention_efficiency or chip.attention_share(assumptions.attention_kernel)
    return chip.peak_flop_per_s * share


def update_seconds(job: Job, assumptions: Assumptions, local: LocalParameters) -> float:
    """The optimizer: reads and writes its part of all states once, at the memory's bandwidth.

    Offloaded: gradients go to the host and weights come back, over `host_link`, which takes longer
    than the host's own work (ZeRO-Offload, arXiv:2101.06840, section 4).
    """
    recipe, part = job.recipe, updated_parameters(local, job.layout)
    if recipe.offload == "optimizer":
        moved = part * (recipe.gradient_bytes + recipe.weight_bytes)
        return moved / assumptions.host_link.bytes_per_s
    return 2 * part * recipe.bytes_per_parameter / job.cluster.accelerator.memory_bytes_per_s


def accumulation_seconds(job: Job, local: LocalParameters) -> float:
    """Adding the gradients of one micro-batch to the sum: reads both, writes the sum.

    Parameters · (bytes of a gradient + 2 · bytes of a sum) / memory bandwidth: 10 bytes for a
    16-bit gradient and an fp32 sum. The parameters are those of the shard where ZeRO-2 or 3 reduces
    every micro-batch. Nothing under `fused_accumulation`.
    """
    recipe, layout = job.recipe, job.layout
    if recipe.fused_accumulation:
        return 0.0
    sharded = layout.zero_stage >= 2 and not layout.adds_up
    parameters = shard_parameters(local, layout) if sharded else local.total
    moved = parameters * (recipe.compute_bytes + 2 * recipe.accumulated_bytes)
    return moved / job.cluster.accelerator.memory_bytes_per_s


check_public(globals())
