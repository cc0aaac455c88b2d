"""What the theory tells of a training run on several ranks: a trace of its calls, and bytes kept.

What a version sends otherwise than the theory stands in the table of demos.shared.expected.
"""

from collections.abc import Iterator, Sequence

from course_lib.demos.shared import expected
from course_lib.demos.shared.training import Training
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import LocalParameters, local_parameters, sharded_states
from course_lib.theory.network.bucket_timeline import (
    BUCKET_CAP_BYTES,
    FIRST_BUCKET_BYTES,
    ddp_buckets,
)
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import AXES, Collective, CommunicationPolicy, Traffic
from course_lib.trace import SEND, Event, Total, Trace

FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)  # what every demo trains in
BY_AXIS = dict(zip(AXES, AXES, strict=True))  # for Trace.sent: a told call is labelled by its axis
Sent = dict[str, Total]  # by operation
Stored = dict[str, int]  # by consumer: bytes


def traffic(
    training: Training,
    layout: Layout,
    *,
    stage: int = 0,
    recipe: Recipe = FP32,
    policy: CommunicationPolicy | None = None,
) -> Traffic:
    """The theory's collectives of one update on a rank of pipeline rank `stage`."""
    return step_traffic(_job(training, layout, recipe), stage, policy=policy)


def _job(training: Training, layout: Layout, recipe: Recipe = FP32) -> Job:
    # The cluster, and so its rates, do not matter: only counts and bytes are compared.
    return Job(training.shape(), recipe, layout, sequence=training.sequence)


def told(traffic: Traffic, *axes: str) -> Trace:
    """The calls of these axes (default: all): what a log of the wire is compared with."""
    entries = (entry for entry in traffic.collectives if not axes or entry.axis in axes)
    return Trace(call for entry in entries for call in calls_of(entry))


def calls_of(entry: Collective, parameters: float = 1, more: int = 0) -> Iterator[Event]:
    """The calls of one kind; `more` parameters in each are padding, beside so many others."""
    size = entry.size_bytes * (parameters + more) / parameters
    return calls(entry.operation, entry.count, round(entry.count * size), entry.axis)


def calls(what: str, count: int, size_bytes: int, axis: str = "") -> Iterator[Event]:
    """`count` calls that carry so many bytes together; a message goes to one neighbour or other."""
    to = 1 if what == SEND else None
    for number in range(count):
        each = size_bytes // count + (number < size_bytes % count)
        yield Event(number, 0, what, to=to, bytes=each, label=axis)


def besides(where: str, training: Training, layout: Layout) -> Trace:
    """What `where` calls besides, by the table of demos.shared.expected."""
    job = _job(training, layout)
    counted = ((row, row.calls(job)) for row in expected.rows(where))
    return Trace(
        call
        for row, count in counted
        for call in calls(row.what.split()[1], count, count * row.each_bytes(job))
    )


def ddp_calls(gradient_bytes: Sequence[int], ranks: int) -> Trace:
    """The all-reduces of one update of DDP; gradients in the order of `named_parameters`."""
    buckets = ddp_buckets(gradient_bytes[::-1], BUCKET_CAP_BYTES, FIRST_BUCKET_BYTES)
    return Trace(calls("all-reduce", len(buckets), sum(buckets)) if ranks > 1 else ())


def predicted_stored(training: Training, layout: Layout = ALONE, stage: int = 0) -> Stored:
    """Bytes that a rank keeps from one update to the next, in the words of `scratch.gpt`."""
    local = local_parameters(training.shape(), layout, stage)
    return {**stored_states(local, layout), "inputs and labels": 0}


def stored_states(local: LocalParameters, layout: Layout, recipe: Recipe = FP32) -> Stored:
    """Bytes of weights, gradients and optimizer states, in the words of `scratch.gpt`."""
    states = sharded_states(local, recipe, layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
    }
