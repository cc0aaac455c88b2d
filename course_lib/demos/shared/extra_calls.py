"""The collectives that an implementation calls besides those of the theory, with the reasons."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.shape import NORM_NUMBERS


class Row(NamedTuple):
    """Extra calls in implementation `where`: operation `what` ("axis operation"), their bytes."""

    where: str
    what: str
    calls: Callable[[Job], int]
    each_bytes: Callable[[Job], int]
    why: str  # a template; {} is the number of calls


def _norms(job: Job) -> int:
    """The number of norm tensors: weights, and biases if any."""
    return NORM_NUMBERS[job.shape.norm] * (2 * job.shape.layers + 1)


def _gradient(job: Job) -> int:
    """Bytes per gradient element when it is reduced."""
    recipe = job.recipe
    return recipe.gradient_bytes if job.layout.adds_up else recipe.compute_bytes


def _positions(job: Job) -> int:
    return job.sequence * job.shape.hidden * job.shape.learned_positions


def _activations(job: Job) -> int:
    """Bytes of one b·s·h activation of a micro-batch."""
    return job.local_tokens.inside * job.shape.hidden * job.recipe.compute_bytes


def _held_whole(job: Job) -> int:
    """Elements replicated over tp: norms, two output biases per layer, positions."""
    return (_norms(job) + 2 * job.shape.layers) * job.shape.hidden + _positions(job)


ROWS = (
    Row(
        "torch, sequence parallelism",
        "tp all-reduce",
        lambda job: job.layout.reductions * _norms(job),
        lambda job: job.shape.hidden * _gradient(job),
        "gradients of the {} tensors of norms, each for itself",
    ),
    Row(
        "torch, sequence parallelism",
        "tp all-gather",
        lambda job: job.layout.passes * job.shape.learned_positions,
        lambda job: _positions(job) * job.recipe.compute_bytes,
        "gradient of the positions, which every rank looks up",
    ),
    Row(
        "torch, separate q, k and v",
        "tp all-reduce",
        lambda job: 2 * job.shape.layers * job.layout.passes,
        _activations,
        "q, k and v are modules of their own, and each sums the gradient of their common input",
    ),
    Row(
        "scratch, sequence parallelism",
        "tp all-reduce",
        lambda _: 1,
        lambda job: _held_whole(job) * _gradient(job),
        "gradients of all that every rank holds whole, in one sum",
    ),
)


def rows(where: str) -> Iterator[Row]:
    """The rows of one implementation."""
    return (row for row in ROWS if row.where == where)
