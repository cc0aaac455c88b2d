"""One step of each story: extremes included, and what is refused."""

from collections.abc import Callable

from course_lib import figures
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.hardware import HDR, accelerator
from course_lib.theory.network.all_reduce_steps import ring_steps, tree_steps
from course_lib.theory.network.bucket_steps import bucket_steps
from course_lib.theory.network.bucket_timeline import Gradient, ddp_timeline
from course_lib.theory.network.context_steps import ring_attention_steps
from course_lib.theory.network.expert_steps import skewed_exchange
from course_lib.theory.network.pair_steps import pair_steps
from course_lib.theory.network.ring_or_tree import ring_or_tree
from course_lib.theory.network.served_steps import served_steps
from course_lib.theory.network.zero_steps import zero_steps

LAYERS_BACK = [Gradient(name, 10**7, 0.005) for name in ("layer 2", "layer 1", "embedding")]

BUCKETS = bucket_steps(ddp_timeline(LAYERS_BACK, 64, HDR, cap_bytes=10**7, first_bytes=10**7))

ONE_BUCKET = bucket_steps(ddp_timeline(LAYERS_BACK, 2, HDR, cap_bytes=10**9, first_bytes=10**9))

ZERO_3, ZERO_0 = zero_steps(600, 3, 6, stage=3), zero_steps(600, 3, 2, stage=0)

LATE_PUSHES = served_steps((0.030, 0.036, 0.120), 0.2)

IN_STEP = served_steps((0.030, 0.036, 0.120), 0.2, together=True)

MLP_PAIR = pair_steps("mlp", 8192, 4096, 4)

ATTENTION_PAIR = pair_steps("attention", 64, 128, 2, sequence_parallel=True)

NVLINK = accelerator("H100-SXM").inside

SKEWED = skewed_exchange(64, 8, 2, 4, skew=0.5, factor=1.25)

ONE_FAVOURITE = skewed_exchange(64, 8, 2, 8, skew=2.0, factor=1.0)


def tree(ranks: int, size_bytes: float, step: int) -> Drawing:
    times = ring_or_tree("all-reduce", size_bytes, ranks, NVLINK)
    return figures.tree_step(tree_steps(ranks), times, step)


def attention(ranks: int, zigzag: bool, moment: int) -> Drawing:
    result = ring_attention_steps(16 * ranks, ranks, zigzag=zigzag)
    return figures.ring_attention_step(result, moment)


STEPS: dict[str, Callable[[], Drawing | figures.Sheet]] = {
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
    "pair, at first": lambda: figures.pair_step(MLP_PAIR, 0),
    "pair, summed": lambda: figures.pair_step(MLP_PAIR, 5),
    "pair, at the end": lambda: figures.pair_step(MLP_PAIR, 11),
    "pair of attention": lambda: figures.pair_step(ATTENTION_PAIR, 8),
    "ring, before": lambda: figures.ring_step(ring_steps(4), 0),
    "ring, adding": lambda: figures.ring_step(ring_steps(5), 3),
    "ring, copying": lambda: figures.ring_step(ring_steps(8), 10),
    "ring, six ranks": lambda: figures.ring_step(ring_steps(6), 4),
    "ring, two ranks": lambda: figures.ring_step(ring_steps(2), 2),
    "tree, before": lambda: tree(8, 64_000, 0),
    "tree, up": lambda: tree(5, 10**9, 2),
    "tree, down": lambda: tree(16, 4_000, 8),
    "tree, two ranks": lambda: tree(2, 64_000, 2),
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
    lambda: figures.pair_step(MLP_PAIR, 12),
]
