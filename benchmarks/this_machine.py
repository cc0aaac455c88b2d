"""Memory and time of real updates on this machine, beside what its two measured speeds predict.

    python benchmarks/measured_runs.py --here

Nothing is fitted: the peak is the fastest of three large matmuls, the bandwidth that of an
addition, both on one core and in fp32. What the prediction leaves out makes it too fast.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from course_lib.measure.peak import log_memory
from course_lib.measure.times import matmul_flop_per_s, memory_bytes_per_s
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.hardware import PCIE4, Accelerator, Cluster
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.inputs.units import GB
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.step.step_time import step_time

# torch's AdamW on a CPU with fused=True, its cross-entropy, and gradients that are thrown away.
RECIPE = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
VOCAB, CONTEXT, SAMPLES = 256, 64, 8
SHAPES = {
    f"{layers} × {hidden}": TransformerShape(layers, hidden, 4, 4 * hidden, VOCAB, CONTEXT)
    for layers, hidden in ((2, 64), (4, 128), (4, 256))
}


@dataclass(frozen=True)
class Here:
    """One shape: predicted and measured bytes at the peak, and seconds of an update."""

    predicted_bytes: float
    measured_bytes: float
    predicted_s: float
    times_s: list[float]


def this_accelerator() -> Accelerator:
    """One core of this machine, by its measured matmul and addition."""
    peak = max(matmul_flop_per_s(n, n, n) for n in (256, 512, 1024))
    best = dict.fromkeys(("matmul_efficiency", "layer_efficiency", "attention_efficiency"), 1.0)
    speeds = peak, 8 * GB, memory_bytes_per_s()
    return Accelerator("one core", *speeds, PCIE4, number_format="fp32", **best)


def measure(job: Job, repeats: int) -> Here:
    """Predict and measure one update of a GPT of this shape."""
    shape, samples = job.shape, job.layout.micro_batch
    model = GPT(shape.layers, shape.hidden, shape.heads, shape.vocab, shape.context)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens, labels = (torch.randint(shape.vocab, (samples, shape.context)) for _ in range(2))

    def update() -> None:
        F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    update()
    states = [it for state in optimizer.state.values() for it in state.values()]
    with log_memory([*model.parameters(), *states, tokens, labels]) as log:
        update()
    return Here(
        gpu_memory(job, overhead_bytes=0).total_bytes,
        log.peak_bytes,
        step_time(job).total_s,
        sorted(seconds(update) for _ in range(repeats)),
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def here(repeats: int = 15) -> dict[str, Here]:
    """All shapes, on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cluster = Cluster(this_accelerator(), gpus_per_node=1)
        layout = Layout(micro_batch=SAMPLES)
        return {
            name: measure(Job(shape, RECIPE, layout, cluster), repeats)
            for name, shape in SHAPES.items()
        }
    finally:
        torch.set_num_threads(threads)


def table(found: dict[str, Here]) -> str:
    """The rows as Markdown; a time is the median of the repeats, with the fastest and slowest."""
    lines = ["| this machine | predicted | measured | error |", "|---|---:|---:|---:|"]
    for name, row in found.items():
        error = row.predicted_bytes / row.measured_bytes - 1
        lines.append(
            f"| memory, {name} | {row.predicted_bytes / 1e6:.2f} MB | "
            f"{row.measured_bytes / 1e6:.2f} MB | {error:+.1%} |"
        )
    for name, row in found.items():
        fastest, median, slowest = (row.times_s[at] for at in (0, len(row.times_s) // 2, -1))
        lines.append(
            f"| step, {name} | {1e3 * row.predicted_s:.1f} ms | {1e3 * median:.1f} ms "
            f"({1e3 * fastest:.1f} to {1e3 * slowest:.1f}) | {median / row.predicted_s - 1:+.0%} |"
        )
    return "\n".join(lines)
