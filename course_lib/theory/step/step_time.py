"""The time of one training step: computation, exposed communication, and the pipeline bubble."""

from dataclasses import dataclass, replace

from course_lib.checked import NotNegative, check_public
from course_lib.theory.compute.budget import TrainingRun, utilisation
from course_lib.theory.compute.flops import FlopBreakdown, head_flops, layer_flops, training_flops
from course_lib.theory.inputs import Job, Layout
from course_lib.theory.inputs.units import format_number
from course_lib.theory.pipelines.bubble import PassTimes, bubble_time
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.stage import (
    StageBusyTime,
    alike_stages,
    attention_rate,
    layer_rate,
    stage_busy_times,
)

# The parts of a step's time, in display order.
_MESSAGES = ("tp_s", "cp_s", "ep_s", "pp_s", "dp_s")
LEAVES = ("compute_s", "elementwise_s", *_MESSAGES, "bubble_s", "accumulation_s", "optimizer_s")


@dataclass(frozen=True, kw_only=True)
class StepTime(StageBusyTime):
    """Seconds of one training step on the slowest stage, by part; totals are properties.

    `compute_s`: matmuls. `elementwise_s`: memory-bound kernels between them. `tp_s` to `dp_s`:
    exposed communication. `bubble_s`: waiting for other stages. `accumulation_s`: accumulating
    gradients over micro-batches. `optimizer_s`: updating parameters. `model_flop` and
    `hardware_flop`: of all GPUs together.
    """

    bubble_s: float
    tokens: int
    gpus: int
    model_flop: float
    hardware_flop: float
    peak_flop_per_s: float
    gpu_hour_usd: float
    convention: str

    def leaves(self) -> dict[str, float]:
        """Seconds of each part, by name."""
        return {name: getattr(self, name) for name in LEAVES}

    @property
    def total_s(self) -> float:
        """Seconds of one step: the sum of all parts."""
        return sum(self.leaves().values())

    @property
    def working_s(self) -> float:
        """Seconds of computation: matmuls, elementwise kernels, accumulation and optimizer."""
        return self.compute_s + self.elementwise_s + self.accumulation_s + self.optimizer_s

    def parts(self) -> dict[str, float]:
        """Seconds of computing, exposed messages and idling; their sum is `total_s`."""
        return {
            "computing": self.working_s,
            "messages that show": self.communication_s,
            "idle": self.bubble_s,
        }

    @property
    def tokens_per_s(self) -> float:
        """Throughput of all GPUs together: tokens of one step / its time."""
        return self.tokens / self.total_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput per GPU."""
        return self.tokens_per_s / self.gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: model FLOP / (time · GPUs · peak)."""
        return utilisation(self.model_flop, self.total_s, self.gpus, self.peak_flop_per_s)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: recomputation included, so never below MFU."""
        return utilisation(self.hardware_flop, self.total_s, self.gpus, self.peak_flop_per_s)

    def run(self, tokens: NotNegative) -> TrainingRun:
        """The TrainingRun for `tokens`: days, GPU-hours and cost."""
        return TrainingRun(tokens / self.tokens_per_s, self.gpus, self.gpu_hour_usd)

    def days(self, tokens: float) -> float:
        """Wall-clock days for `tokens`."""
        return self.run(tokens).days

    def cost_usd(self, tokens: float) -> float:
        """Cost in USD of training on `tokens`, at the cluster's price per GPU-hour."""
        return self.run(tokens).cost_usd

    def explain(self) -> str:
        """One line per part with its share of the step, then totals and the convention."""
        total = self.total_s
        lines = [
            f"{name.removesuffix('_s'):<14}{time:>12.4f} s {time / total:>7.1%}"
            for name, time in self.leaves().items()
        ]
        rates = (
            f"{self.tokens:,} tokens / {format_number(total, 4)} s = "
            f"{self.tokens_per_s:,.0f} tokens/s on {self.gpus:,} GPUs; "
            f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}"
        )
        where = f"{'total':<14}{total:>12.4f} s on stage {self.stage}, the slowest"
        return "\n".join([*lines, where, rates, *self.convention.split("; ")])


def step_time(job: Job, assumptions: Assumptions | None = None) -> StepTime:
    """Time of one update on the slowest stage: computation + exposed messages + bubble + optimizer.

    Computation: FLOP of the stage / (tp · cp) / the rates of layers and of attention; elementwise:
    touches · bytes of activations / memory bandwidth. Messages: the α–β time of `step_traffic`,
    less what is hidden. Bubble: the schedule's closed form with the other stages' mean pass; for
    1F1B one micro-batch through all other stages, which is an upper bound if stages differ.
    """
    assumptions = assumptions or Assumptions()
    flops = _flops(job, assumptions)
    alike = alike_stages(job.shape, job.layout)
    stages = stage_busy_times(job, assumptions, tuple(alike))
    all_passes = sum(stage.passes_s * alike[stage.stage] for stage in stages)
    forward = flops.forward_flop / flops.hardware_flop
    bubbles = [_bubble_s(job.layout, all_passes - stage.passes_s, forward) for stage in stages]
    ends = [stage.total_s + bubble for stage, bubble in zip(stages, bubbles, strict=True)]
    slowest = ends.index(max(ends))  # the earliest of equals
    cluster, tera = job.cluster, 1e12
    attention = attention_rate(cluster, assumptions, job.recipe) / tera
    rates = (
        f"matmuls of layers reach {layer_rate(cluster, assumptions) / tera:.0f} TFLOP/s, the best "
        f"matmul {cluster.matmul_flop_per_s / tera:.0f}, attention {attention:.0f}"
    )
    return StepTime(
        **vars(stages[slowest]),
        bubble_s=bubbles[slowest],
        tokens=flops.tokens,
        gpus=job.layout.world,
        model_flop=flops.model_flop,
        hardware_flop=flops.hardware_flop,
        peak_flop_per_s=job.cluster.accelerator.peak_flop_per_s,
        gpu_hour_usd=job.cluster.gpu_hour_usd,
        convention=f"{flops.convention}; {rates}; {assumptions.explain()}",
    )


def _flops(job: Job, assumptions: Assumptions) -> FlopBreakdown:
    """FLOP of an update on all GPUs, with the recomputation of each layer."""
    shape, batch = job.shape, job.layout.global_batch
    conventions = assumptions.flop_conventions(job.recipe)
    if job.recipe.recompute_layers is None:
        return training_flops(shape, batch, job.sequence, **conventions)
    total = head_flops(shape, batch, job.sequence)
    for chunk in range(job.layout.chunks):
        for layer_job, layer, count in job.layers_of(chunk):
            conventions = assumptions.flop_conventions(layer_job.recipe)
            one = layer_flops(shape, layer, batch, job.sequence, **conventions)
            total += one.times(count)
    words = f"recompute={job.recipe.recompute} of {job.recipe.recompute_layers} layers a chunk"
    return replace(total, convention=words)


def _bubble_s(layout: Layout, others: float, forward: float) -> float:
    """Seconds that one stage waits for the others, whose passes in a step take `others` in total.

    `forward`: the forward pass' fraction of forward and backward. The weight gradients, W of
    zero-bubble schedules, are assumed to cost one forward pass.
    """
    if layout.pp == 1:
        return 0.0
    mean = others / (layout.pp - 1) / layout.accumulation
    times = PassTimes(forward * mean, (1 - forward) * mean, weight=forward * mean)
    sizes = (layout.pp, layout.accumulation, layout.virtual_stages)
    return bubble_time(layout.schedule, *sizes, group=layout.group, times=times)


check_public(globals())
