"""What the theory says about a training run on several ranks, in the words of logs and ledgers."""

from course_lib.demos.shared.training import Training
from course_lib.measure.wire import Total
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.states import LocalParameters, local_parameters, sharded_states
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.network.traffic import Traffic

FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)  # what every demo trains in
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
    # The cluster, and so its rates, do not matter: only counts and bytes are compared.
    job = Job(training.shape(), recipe, layout, sequence=training.sequence)
    return step_traffic(job, stage, policy=policy)


def predicted_sent(traffic: Traffic, *axes: str, by_axis: bool = False) -> Sent:
    """Calls and bytes of these axes (default: all), in a log's form.

    `by_axis` divides them as `follow` does when it is given axes: {"tp all-reduce": (2, 64)}.
    """
    totals: Sent = {}
    for entry in traffic.collectives:
        if not axes or entry.axis in axes:
            name = f"{entry.axis} {entry.operation}" if by_axis else entry.operation
            add_calls(totals, name, entry.count, round(entry.count * entry.size_bytes))
    return totals


def add_calls(sent: Sent, operation: str, calls: int, size_bytes: int) -> None:
    """Add so many calls to a prediction; `size_bytes` are those of all of them together."""
    before = sent.get(operation, Total(0, 0))
    sent[operation] = Total(before.calls + calls, before.size_bytes + size_bytes)


def predicted_stored(training: Training, layout: Layout, stage: int = 0) -> Stored:
    """Bytes that a rank keeps from one update to the next, in the words of `scratch.ledger`."""
    local = local_parameters(training.shape(), layout, stage)
    return {**stored_states(local, layout), "inputs and labels": 0}


def stored_states(local: LocalParameters, layout: Layout, recipe: Recipe = FP32) -> Stored:
    """Bytes of weights, gradients and optimizer states, in the words of `scratch.ledger`."""
    states = sharded_states(local, recipe, layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
    }
