"""The busy time of a pipeline stage, and a model of overlapping messages with computation.

A message slows down concurrent computation by the scarcer of two resources: the multiprocessors
(SMs) that its kernel occupies, or the memory bandwidth that its bytes use. A message of t seconds
and B bytes takes

    taken = max(message_sms · t, message_touches · B / memory bandwidth), at most t.

So overlapping it saves t - taken. All axes share one window: they are hidden one after another, in
`HIDING_ORDER`, each behind the computation left over by the axes before it. Thus t seconds of
messages overlapped with C seconds of computation take max(t, C + taken).

Measured by Lee et al. 2025, arXiv:2507.03114, on nodes of 4 A100, H100, MI210 and MI250: overlap
makes computation 18.9 % longer, and running both in sequence takes 10.2 % longer than overlapped.
So a second of hidden messages costs 0.6 s of computation there; the formula gives 0.4 to 0.5 on
NVLink. On a slow network the cost is message_sms.
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

# Small messages that overlap in every layer go first; dp gets what is left of its window.
HIDING_ORDER = ("cp", "tp", "ep", "pp", "dp")


@dataclass(frozen=True)
class Hideable:
    """Messages of one axis that may be overlapped: their seconds, bytes sent, and the window.

    `window_s`: seconds of computation to hide behind. All are numbers or numpy arrays.
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
        """Seconds that overlapping the messages of `axis` saves in a step.

        overlap · (seconds - taken), but never more than the window: see the module's docstring.
        """
        held = assumptions.message_sms * self.seconds
        moved = assumptions.message_touches * self.sent_bytes / memory_bytes_per_s
        gained = self.seconds - _least(self.seconds, -_least(-held, -moved))
        return _least(assumptions.overlap[axis] * gained, self.window_s)


def _least(one: Any, other: Any) -> Any:
    """The smaller of two numbers; element by element for numpy arrays."""
    return min(one, other) if isinstance(one, (int, float)) else one.clip(None, other)


# --- Seconds of work of one pipeline rank in a training step, without waiting for other ranks ---


@dataclass(frozen=True)
class StageBusyTime:
    """Seconds of one update on pipeline rank `stage`, by part; only exposed messages count."""

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
        """Seconds of exposed messages, all axes together."""
        return self.tp_s + self.cp_s + self.ep_s + self.pp_s + self.dp_s

    @property
    def passes_s(self) -> float:
        """Seconds that recur in every micro-batch, except dp and gradient accumulation."""
        messages = self.tp_s + self.cp_s + self.ep_s + self.pp_s
        return self.compute_s + self.elementwise_s + messages

    @property
    def total_s(self) -> float:
        """The sum of all parts, in seconds."""
        return self.passes_s + self.dp_s + self.accumulation_s + self.optimizer_s


def chunk_kinds(shape: TransformerShape, layout: Layout) -> list[tuple[int, int]]:
    """(dense layers, layers with experts) of each chunk, in model order."""
    counts = layout.chunk_layers(shape)
    dense = shape.dense_layers if shape.experts else shape.layers
    starts = [0, *accumulate(counts[:-1])]
    in_chunk = [
        min(count, max(0, dense - start)) for count, start in zip(counts, starts, strict=True)
    ]
    return [(plain, count - plain) for plain, count in zip(in_chunk, counts, strict=True)]


def alike_stages(shape: TransformerShape, layout: Layout) -> dict[int, int]:
    """Number of pipeline ranks with identical work and messages, by the first of them.

    Their chunks have equally many layers of each kind, and they hold the same ends of the model.
    """
    kinds = chunk_kinds(shape, layout)
    alike: dict[tuple[object, ...], list[int]] = {}
    for stage in range(layout.pp):
        chunks = sorted(kinds[chunk] for chunk in layout.stage_chunks(stage))
        alike.setdefault((*chunks, layout.holds_ends(stage)), []).append(stage)
    return {stages[0]: len(stages) for stages in alike.values()}


def stage_busy_time(job: Job, assumptions: Assumptions, stage: int) -> StageBusyTime:
    """The busy time of one pipeline rank, without the bubble."""
    return _Step(job, assumptions).busy_time(stage)


def stage_busy_times(
    job: Job, assumptions: Assumptions, stages: tuple[int, ...]
) -> list[StageBusyTime]:
    """The busy times of several pipeline ranks; work that they share is computed once."""
    step = _Step(job, assumptions)
    return [step.busy_time(stage) for stage in stages]


_Amount = Annotated[float, partial(number, least=0, most=ABSURD_FLOP)]


@dataclass(frozen=True)
class Work:
    """Work of one GPU: FLOP of matmuls and of attention, memory traffic of elementwise kernels."""

    matmul_flop: _Amount = 0.0
    attention_flop: _Amount = 0.0
    memory_bytes: _Amount = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*map(add, vars(self).values(), vars(other).values()))

    def times(self, count: CountOrZero) -> "Work":
        """This work repeated `count` times."""
        return Work(*(count * value for value in vars(self).values()))


def layer_work(job: Job, assumptions: Assumptions, layer: int) -> Work:
    """Work of one layer and micro-batch, forward and backward, on the GPU with the busiest experts.

    A third of the memory accesses are in the forward pass, which recomputation repeats.
    """
    recipe, layout = job.recipe, job.layout
    conventions = assumptions.flop_conventions(recipe)
    flops = layer_flops(job.shape, layer, layout.micro_batch, job.sequence, **conventions)
    repeat = 4 / 3 if recipe.recompute == "full" else 1  # experts are recomputed like all else
    extra = (recipe.imbalance - 1) * flops.experts_flop * repeat
    needed = needed_terms(job, layer).total_bytes
    touched = assumptions.touches * (needed + recomputed_bytes(job, layer) / 3)
    attention = attention_flop(job.shape, flops, recipe.recompute, recipe.attention)
    gpus = layout.tp * layout.cp
    return Work((flops.hardware_flop - attention + extra) / gpus, attention / gpus, touched)


def head_work(job: Job, assumptions: Assumptions) -> Work:
    """Work of the last norm, the logits and the loss of one micro-batch, forward and backward."""
    layout = job.layout
    flops = head_flops(job.shape, layout.micro_batch, job.sequence)
    touched = assumptions.touches * output_activation_bytes(job)
    return Work(flops.hardware_flop / (layout.tp * layout.cp), 0.0, touched)


def stage_work(job: Job, assumptions: Assumptions, stage: int) -> Work:
    """Work of a pipeline rank in a step: its layers, and the head on the last rank."""
    return _Step(job, assumptions).work(stage)


@dataclass(frozen=True)
class _Step:
    """A job under assumptions, with results shared by all its stages."""

    job: Job
    assumptions: Assumptions

    @cached_property
    def sent(self) -> Job:
        """The job with links at the bandwidth that collectives reach."""
        return replace(self.job, cluster=self.assumptions.reached(self.job.cluster))

    @cached_property
    def known(self) -> dict[tuple[str, int], Work]:
        """Cache of `layer_work` by (recomputation, layer)."""
        return {}

    def work(self, stage: int) -> Work:
        """See `stage_work`."""
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
        """See `stage_busy_time`."""
        job, assumptions = self.job, self.assumptions
        layout, chip = job.layout, job.cluster.accelerator
        traffic = step_traffic(self.sent, stage, policy=assumptions.policy)
        work = self.work(stage)
        attention = work.attention_flop / attention_rate(job.cluster, assumptions, job.recipe)
        compute = work.matmul_flop / layer_rate(job.cluster, assumptions) + attention
        elementwise = work.memory_bytes / chip.memory_bytes_per_s
        passes = 1 if layout.exchanges_each_pass else layout.accumulation  # one of them hides dp
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
    """FLOP/s that one GPU reaches in a layer's matmuls."""
    chip = cluster.accelerator
    return cluster.matmul_flop_per_s * (assumptions.layer_efficiency or chip.layer_efficiency)


def attention_rate(cluster: Cluster, assumptions: Assumptions, recipe: Recipe) -> float:
    """FLOP/s of the attention kernel; standard attention runs at the rate of other matmuls."""
    if recipe.attention == "standard":
        return layer_rate(cluster, assumptions)
    chip = cluster.accelerator
    share = assumptions.attention_efficiency or chip.attention_share(assumptions.attention_kernel)
    return chip.peak_flop_per_s * share


def update_seconds(job: Job, assumptions: Assumptions, local: LocalParameters) -> float:
    """Seconds of the optimizer step: reads and writes its states once at memory bandwidth.

    Offloaded: gradients go to the host and weights come back over `host_link`, which takes longer
    than the host's computation (ZeRO-Offload, arXiv:2101.06840, section 4).
    """
    recipe, part = job.recipe, updated_parameters(local, job.layout)
    if recipe.offload == "optimizer":
        moved = part * (recipe.gradient_bytes + recipe.weight_bytes)
        return moved / assumptions.host_link.bytes_per_s
    return 2 * part * recipe.bytes_per_parameter / job.cluster.accelerator.memory_bytes_per_s


def accumulation_seconds(job: Job, local: LocalParameters) -> float:
    """Seconds to add the gradients of one micro-batch to the sum: reads both, writes the sum.

    Parameters · (bytes of a gradient + 2 · bytes of a sum) / memory bandwidth: 10 bytes for a
    16-bit gradient and an fp32 sum. The parameters are those of the shard if ZeRO-2 or 3 reduces
    every micro-batch. 0 under `fused_accumulation`.
    """
    recipe, layout = job.recipe, job.layout
    if recipe.fused_accumulation:
        return 0.0
    sharded = layout.zero_stage >= 2 and not layout.adds_up
    parameters = shard_parameters(local, layout) if sharded else local.total
    moved = parameters * (recipe.compute_bytes + 2 * recipe.accumulated_bytes)
    return moved / job.cluster.accelerator.memory_bytes_per_s


check_public(globals())
