"""The theory's predictions for a run on several ranks: a trace of calls, and bytes stored.

Where a version deviates from the theory, see the table in demos.shared.extra_calls.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import nn

from course_lib.demos.shared.extra_calls import rows
from course_lib.demos.shared.training import Training
from course_lib.scratch.fsdp import defer
from course_lib.scratch.gpt import GPT
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
BY_AXIS = dict(zip(AXES, AXES, strict=True))  # for Trace.sent: predicted calls are labelled by axis
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
    # The cluster and its rates do not matter: only counts and bytes are compared.
    return Job(training.shape(), recipe, layout, sequence=training.sequence)


def told(traffic: Traffic, *axes: str) -> Trace:
    """The predicted calls of these axes (default: all), to compare with a log of the wire."""
    entries = (entry for entry in traffic.collectives if not axes or entry.axis in axes)
    return Trace(call for entry in entries for call in calls_of(entry))


def calls_of(entry: Collective, parameters: float = 1, more: int = 0) -> Iterator[Event]:
    """The calls of one collective, scaled by `more` padding per `parameters` parameters."""
    size = entry.size_bytes * (parameters + more) / parameters
    return calls(entry.operation, entry.count, round(entry.count * size), entry.axis)


def calls(what: str, count: int, size_bytes: int, axis: str = "") -> Iterator[Event]:
    """`count` calls with `size_bytes` in total; a message goes to one neighbour or the other."""
    to = 1 if what == SEND else None
    for number in range(count):
        each = size_bytes // count + (number < size_bytes % count)
        yield Event(number, 0, what, to=to, bytes=each, label=axis)


def besides(where: str, training: Training, layout: Layout) -> Trace:
    """The extra calls of implementation `where`, by the table in demos.shared.extra_calls."""
    job = _job(training, layout)
    counted = ((row, row.calls(job)) for row in rows(where))
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
    """Bytes that a rank stores between updates, by the consumers of `scratch.gpt.ledger`."""
    local = local_parameters(training.shape(), layout, stage)
    return {**stored_states(local, layout), "inputs and labels": 0}


def stored_states(local: LocalParameters, layout: Layout, recipe: Recipe = FP32) -> Stored:
    """Bytes of weights, gradients and optimizer states, by the consumers of `ledger`."""
    states = sharded_states(local, recipe, layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
    }


# Sharded GPTs, unit by unit: ZeRO at any stage, and FSDP. A unit is a layer, or the root: the
# parameters outside the layers. The theory has no padding, which is added here. Our own units are
# padded to a multiple of n ranks, by -P mod n; `fully_shard` pads each tensor along its first
# dimension.


@dataclass(frozen=True)
class Sharding:
    """A run with model states sharded by `layout`; `by_tensor`: padded as by `fully_shard`."""

    training: Training
    layout: Layout
    recipe: Recipe = FP32
    by_tensor: bool = False

    def units(self) -> dict[str, tuple[int, int, int]]:
        """(number of units, parameters, padding of each) for "layers" and "ends"."""
        local, layers = local_parameters(self.training.shape()), self.training.size[0]
        sizes = {"layers": (layers, local.layer_dense), "ends": (1, local.ends_dense)}
        return {
            place: (count, size, self._padding(place, size))
            for place, (count, size) in sizes.items()
        }

    def _padding(self, place: str, size: int) -> int:
        ranks = self.layout.dp
        if not self.by_tensor:
            return -size % ranks if self.layout.zero_stage else 0
        model = without_memory(self.training)
        inside = set(model.blocks.parameters())
        ends = [p for p in model.parameters() if p not in inside]
        tensors = ends if place == "ends" else list(model.blocks[0].parameters())
        return sum((-len(p) % ranks) * p[0].numel() for p in tensors)

    def told(self) -> Trace:
        """The predicted calls of one update, with one bucket per unit."""
        return Trace(
            call
            for place, (_, size, padding) in self.units().items()
            for entry in traffic(
                self.training,
                self.layout,
                recipe=self.recipe,
                policy=CommunicationPolicy(bucket_bytes=self.recipe.gradient_bytes * size),
            ).collectives
            if entry.place == place
            for call in calls_of(entry, size, padding)
        )

    def stored(self, rank: int = 0) -> Stored:
        """Bytes that a rank stores: the states of all units, in fp32."""
        totals: Counter[str] = Counter()
        for count, size, padding in self.units().values():
            local = LocalParameters(size + padding * self.by_tensor)  # else shards are rounded up
            kept = stored_states(local, self.layout)
            if self.layout.zero_stage < 3:  # whole weights are padded, and nothing else
                kept["weights"] += FP32.weight_bytes * padding
            totals.update({what: count * bytes_ for what, bytes_ in kept.items()})
        if self.by_tensor:  # torch's optimizer has no states for padding
            parameters = without_memory(self.training).parameters()
            totals["optimizer"] = 8 * own_numbers(parameters, rank, self.layout.dp)
        return dict(totals)


def without_memory(training: Training) -> GPT:
    """The model on the meta device: shapes and weight tying only."""
    return cast(GPT, defer(lambda: training.build("meta")).model)


def own_numbers(parameters: Iterable[nn.Parameter], rank: int, ranks: int) -> int:
    """Elements on one rank, without padding, of tensors sharded along their first dimension."""
    total = 0
    for parameter in parameters:
        rows = -(-len(parameter) // ranks)
        total += min(rows, max(0, len(parameter) - rank * rows)) * parameter[0].numel()
    return total


def fsdp(
    training: Training, ranks: int, precision: str, reshard: bool = True, by_tensor: bool = False
) -> Sharding:
    """FSDP: units are gathered in `precision`, and gradients reduced in fp32."""
    layout, recipe = Layout(dp=ranks, zero_stage=3, reshard=reshard), wire_recipe(precision)
    return Sharding(training, layout, recipe, by_tensor)


def wire_recipe(precision: str) -> Recipe:
    """A recipe that gathers units in `precision` and reduces gradients in fp32."""
    return replace(FP32, compute=precision)
