"""One step of each story: extremes included, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

from course_lib import figures
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.hardware import HDR, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.buffer_turns import buffer_turns
from course_lib.theory.memory.layer_walk import LayerWalk, layer_walk
from course_lib.theory.memory.step_timeline import StepTimeline, step_timeline
from course_lib.theory.memory.unit_life import UnitCosts, unit_life
from course_lib.theory.network.all_reduce_steps import ring_steps, tree_steps
from course_lib.theory.network.bucket_steps import bucket_steps
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.network.context_steps import ring_attention_steps
from course_lib.theory.network.expert_steps import skewed_exchange
from course_lib.theory.network.pair_steps import pair_steps
from course_lib.theory.network.ring_or_tree import ring_or_tree
from course_lib.theory.network.served_steps import served_steps
from course_lib.theory.network.zero_steps import zero_steps
from course_lib.theory.step.failing_job import JobCosts, failing_job

LAYERS_BACK = [Gradient(name, 10**7, 0.005) for name in ("layer 2", "layer 1", "embedding")]

BUCKETS = bucket_steps(ddp_timeline(LAYERS_BACK, 64, HDR, cap_bytes=10**7, first_bytes=10**7))

ONE_BUCKET = bucket_steps(ddp_timeline(LAYERS_BACK, 2, HDR, cap_bytes=10**9, first_bytes=10**9))

ZERO_3, ZERO_0 = zero_steps(600, 3, 6, stage=3), zero_steps(600, 3, 2, stage=0)

LATE_PUSHES = served_steps((0.030, 0.036, 0.120), 0.2)

IN_STEP = served_steps((0.030, 0.036, 0.120), 0.2, together=True)

ROOT, LAYER = UnitCosts(0, 4e-3, 9e-3, 9e-3, 5 * 10**8, 5 * 10**8), UnitCosts(*[7e-3] * 4, 4, 4)

LIFE, LONG_LIFE = unit_life([ROOT, *[LAYER] * 4]), unit_life([ROOT, *[LAYER] * 8], prefetch=2)

TURNS, MANY_TURNS = buffer_turns(8), buffer_turns(16)

MLP_PAIR = pair_steps("mlp", 8192, 4096, 4)

ATTENTION_PAIR = pair_steps("attention", 64, 128, 2, sequence_parallel=True)

JOB = failing_job(20, 4, 11, JobCosts(360, 60, 300, 120, 180))

EARLY_JOB = failing_job(2, 5, 1, JobCosts(1, 0, 0, 0, 0))


def step_of(layers: int, recompute: str = "none", **more: object) -> StepTimeline:
    """A step of a small GPT; `more` is for the layout."""
    shape = TransformerShape(layers, 64, 4, 256, 128, 64)
    recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
    recipe = replace(recipe, recompute=recompute)
    return step_timeline(Job(shape, recipe, Layout(**more)), overhead_bytes=0)  # type: ignore[arg-type]


NVLINK = accelerator("H100-SXM").inside

SKEWED = skewed_exchange(64, 8, 2, 4, skew=0.5, factor=1.25)

ONE_FAVOURITE = skewed_exchange(64, 8, 2, 8, skew=2.0, factor=1.0)


def walk(recompute: str, attention: str = "standard") -> LayerWalk:
    recipe = Recipe(recompute=recompute, attention=attention, dropout=True)
    return layer_walk(Job(MODELS["gpt3-175b"], recipe, sequence=2048))


def tree(ranks: int, size_bytes: float, step: int) -> Drawing:
    times = ring_or_tree("all-reduce", size_bytes, ranks, NVLINK)
    return figures.tree_step(tree_steps(ranks), times, step)


def attention(ranks: int, zigzag: bool, moment: int) -> Drawing:
    result = ring_attention_steps(16 * ranks, ranks, zigzag=zigzag)
    return figures.ring_attention_step(result, moment)


STEPS: dict[str, Callable[[], figures.Drawing]] = {
    "bucket step, first": lambda: figures.bucket_step(BUCKETS, 0),
    "bucket step, middle": lambda: figures.bucket_step(BUCKETS, 4),
    "bucket step, last": lambda: figures.bucket_step(BUCKETS, len(BUCKETS.events)),
    "bucket step, one": lambda: figures.bucket_step(ONE_BUCKET, len(ONE_BUCKET.events) - 1),
    "zero step, first": lambda: figures.zero_step(ZERO_3, 0),
    "zero step, gather": lambda: figures.zero_step(ZERO_3, 1),
    "zero step, backward": lambda: figures.zero_step(ZERO_3, 11),
    "zero step, last": lambda: figures.zero_step(ZERO_0, len(ZERO_0.moments) - 1),
    "served step, first": lambda: figures.served_step(LATE_PUSHES, 0),
    "served step, middle": lambda: figures.served_step(LATE_PUSHES, 14),
    "served step, last": lambda: figures.served_step(LATE_PUSHES, len(LATE_PUSHES.events) - 1),
    "served step, in step": lambda: figures.served_step(IN_STEP, len(IN_STEP.events) - 1),
    "unit life, at first": lambda: figures.unit_life_step(LIFE, 0),
    "unit life, in the middle": lambda: figures.unit_life_step(LIFE, 14),
    "unit life, at the end": lambda: figures.unit_life_step(LIFE, len(LIFE.moments) - 1),
    "unit life, nine units": lambda: figures.unit_life_step(LONG_LIFE, 25),
    "buffers, at first": lambda: figures.buffer_turns_step(TURNS, 0),
    "buffers, at the turn": lambda: figures.buffer_turns_step(TURNS, 9),
    "buffers, sixteen layers": lambda: figures.buffer_turns_step(MANY_TURNS, 31),
    "pair, at first": lambda: figures.pair_step(MLP_PAIR, 0),
    "pair, summed": lambda: figures.pair_step(MLP_PAIR, 5),
    "pair, at the end": lambda: figures.pair_step(MLP_PAIR, 11),
    "pair of attention": lambda: figures.pair_step(ATTENTION_PAIR, 8),
    "job, at first": lambda: figures.failing_job_step(JOB, 0),
    "job, a node dies": lambda: figures.failing_job_step(JOB, 13),
    "job, done": lambda: figures.failing_job_step(JOB, len(JOB.moments) - 1),
    "job, at once": lambda: figures.failing_job_step(EARLY_JOB, 2),
    "memory step, first": lambda: figures.memory_step(step_of(2), 0),
    "memory step, middle": lambda: figures.memory_step(step_of(8, micro_batch=64), 9),
    "memory step, last": lambda: figures.memory_step(step_of(4), 13),
    "ring, before": lambda: figures.ring_step(ring_steps(4), 0),
    "ring, adding": lambda: figures.ring_step(ring_steps(5), 3),
    "ring, copying": lambda: figures.ring_step(ring_steps(8), 10),
    "ring, six ranks": lambda: figures.ring_step(ring_steps(6), 4),
    "ring, two ranks": lambda: figures.ring_step(ring_steps(2), 2),
    "tree, before": lambda: tree(8, 64_000, 0),
    "tree, up": lambda: tree(5, 10**9, 2),
    "tree, down": lambda: tree(16, 4_000, 8),
    "tree, two ranks": lambda: tree(2, 64_000, 2),
    "layer, before": lambda: figures.layer_step(walk("none"), 0, "one layer of GPT-3"),
    "layer, forward": lambda: figures.layer_step(walk("none", "flash"), 10, "one layer of GPT-3"),
    "layer, again": lambda: figures.layer_step(walk("full"), 13),
    "layer, attention again": lambda: figures.layer_step(walk("selective"), 18),
    "layer, backward": lambda: figures.layer_step(walk("full"), 28),
    "layer, last": lambda: figures.layer_step(walk("none"), 20),
    "experts, chosen": lambda: figures.experts_step(SKEWED, 0),
    "experts, dispatch": lambda: figures.experts_step(SKEWED, 4),
    "experts, compute": lambda: figures.experts_step(SKEWED, 6),
    "experts, last": lambda: figures.experts_step(ONE_FAVOURITE, 19),
    "experts, combine": lambda: figures.experts_step(ONE_FAVOURITE, 13),
    "ring attention, before": lambda: attention(4, False, 0),
    "ring attention, waiting": lambda: attention(4, False, 7),
    "ring attention, hop": lambda: attention(2, True, 2),
    "ring attention, zig-zag": lambda: attention(8, True, 9),
}
BAD_STEPS: list[Callable[[], object]] = [
    lambda: figures.unit_life_step(LIFE, 99),
    lambda: figures.buffer_turns_step(TURNS, -1),
    lambda: figures.pair_step(MLP_PAIR, 12),
    lambda: figures.failing_job_step(JOB, 99),
]
