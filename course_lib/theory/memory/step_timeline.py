"""The memory of one GPU over a step: layer by layer forward and backward, then the update.

`peak.memory_moments` has only the four candidate peaks; this timeline includes them among all other
moments. For a pipeline's passes see `replay.memory_timeline`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from course_lib.checked import check_public
from course_lib.theory.inputs.job import Job
from course_lib.theory.memory import activations
from course_lib.theory.memory.peak import OVERHEAD_BYTES, chunk_activations, memory_moments
from course_lib.theory.memory.states import MemoryBreakdown, local_parameters
from course_lib.trace import TAKE, Event, Trace
from course_lib.validation import listed

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


@dataclass(frozen=True)
class StepMoment:
    """A moment of a step and the memory in use during it; micro-batches count from 0."""

    phase: str
    what: str
    micro_batch: int
    bill: MemoryBreakdown


@dataclass(frozen=True)
class StepTimeline:
    """The moments of one update in order of time."""

    steps: tuple[StepMoment, ...]

    @property
    def phases(self) -> tuple[str, ...]:
        """The phase of each moment: forward, backward, update."""
        return tuple(step.phase for step in self.steps)

    @property
    def moments(self) -> tuple[str, ...]:
        """The name of each moment, such as "layer 1" or "loss"."""
        return tuple(step.what for step in self.steps)

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Bytes of each of the seven consumers at each moment."""
        bills = [step.bill.consumers for step in self.steps]
        return {name: tuple(bill[name] for bill in bills) for name in bills[0]}

    @property
    def trace(self) -> Trace:
        """The timeline as a trace: the phase of each moment, and the bytes of each consumer."""
        return Trace(
            event
            for number, step in enumerate(self.steps)
            for event in (
                Event(number, 0, step.phase, step.what, end=number + 1),
                *(
                    Event(number, 0, TAKE, name, bytes=size)
                    for name, size in step.bill.consumers.items()
                ),
            )
        )

    @property
    def peak(self) -> StepMoment:
        """The moment with the most memory in use, the first of equals."""
        return max(self.steps, key=lambda step: step.bill.total_bytes)

    @property
    def peak_bytes(self) -> int:
        """Peak bytes over all moments."""
        return self.peak.bill.total_bytes


def step_timeline(
    job: Job, *, first_update: bool = False, overhead_bytes: float = OVERHEAD_BYTES
) -> StepTimeline:
    """Memory of one GPU at each moment of an update of `job`, which has no pipeline.

    A layer's activations are allocated in its forward pass and freed after its backward pass. With
    gradient_life "backward" a layer's backward starts with the gradients of the layers above it;
    those of embedding and head come last, as in `memory_moments`, whose moments are "loss",
    "layer L", "layer 1, end" and "update". So the peak equals that of `gpu_memory`. Under ZeRO-2
    and 3 it may be lower, since gathered tensors are counted only while they exist. Recomputed
    activations are temporary buffers. `first_update`: this update allocates the optimizer states.
    Not counted: a layer's gradients before they are added to those of an earlier micro-batch,
    communication buffers for gradients, temporaries of single operations. Layers of one kind count
    as equal. Raises ValueError for a pipeline and for too many moments.
    """
    if job.layout.pp > 1:
        raise ValueError(
            f"pp {job.layout.pp} has passes of several micro-batches at a time: take pp=1, or "
            "replay.memory_timeline"
        )
    listed("moments", 2 * job.shape.layers * job.layout.accumulation, "take fewer layers")
    return StepTimeline(tuple(_Step(job, first_update, overhead_bytes).walk()))


class _Step:
    """Computes the memory breakdowns of a step from those of `memory_moments`."""

    def __init__(self, job: Job, first_update: bool, overhead_bytes: float) -> None:
        self.job = job
        moments = memory_moments(job, overhead_bytes=overhead_bytes)
        self.update = moments["update"]
        hidden = {"optimizer_state_bytes": 0} if first_update else {}
        self.resting = replace(self.update, update_bytes=0, **hidden)
        buffers = ("gathered_parameters_bytes", "gathered_gradients_bytes", "bucket_bytes")
        largest = {name: getattr(moments["backward ends"], name) for name in buffers}
        self.in_pass = replace(self.resting, **largest)
        self.kept: list[int] = []
        self.temporary: list[int] = []
        self.parameters: list[int] = []
        for layer_job, layer, count in job.layers_of(0):
            recomputed = activations.recomputed_bytes(layer_job, layer)
            gradients = activations.layer_gradients_bytes(layer_job, layer)
            self.kept += [activations.layer_activation_bytes(layer_job, layer)] * count
            self.temporary += [recomputed + gradients] * count
            self.parameters += [job.shape.layer_parameters(layer).total] * count

    def walk(self) -> Iterator[StepMoment]:
        """Yield all moments, micro-batch by micro-batch, then those of the update."""
        late = self.job.recipe.gradient_life == "backward"
        for number in range(self.job.layout.accumulation):
            yield from self.forward(number, present=not late or number > 0)
            yield from self.backward(number, present=not late or number > 0)
        last = self.job.layout.accumulation - 1
        yield StepMoment(UPDATE, "update", last, self.update)
        after = replace(self.update, update_bytes=0)
        if late:
            after = replace(after, gradients_bytes=0)
        yield StepMoment(UPDATE, "after it", last, after)

    def forward(self, number: int, present: bool) -> Iterator[StepMoment]:
        """Moments of a forward pass. `present`: gradients are already allocated."""
        ends, layers = chunk_activations(self.job, 0), len(self.kept)
        reshard = self.job.layout.reshard
        base = replace(
            self.in_pass,
            inputs_bytes=ends.inputs_bytes,
            head_bytes=activations.embedding_activation_bytes(self.job),
            gradients_bytes=self.in_pass.gradients_bytes * present,
            gathered_gradients_bytes=self.unreduced(number),
        )
        yield self.moment(FORWARD, "embedding", number, base, layers=0)
        for layer in range(1, layers + 1):
            whole, kept = layers - layer + 1 if reshard else layer, sum(self.kept[:layer])
            name = f"layer {layer}"
            yield self.moment(FORWARD, name, number, base, layers=whole, activations_bytes=kept)
        head = {"activations_bytes": sum(self.kept), "head_bytes": ends.head_bytes}
        whole = 0 if reshard else layers
        yield self.moment(FORWARD, "head and loss", number, base, layers=whole, **head)

    def backward(self, number: int, present: bool) -> Iterator[StepMoment]:
        """Moments of a backward pass, which frees activations and allocates gradients."""
        job, layers = self.job, len(self.kept)
        ends = chunk_activations(job, 0)
        base = replace(self.in_pass, inputs_bytes=ends.inputs_bytes)
        loss = {
            "gradients_bytes": base.gradients_bytes * present,
            "head_bytes": ends.head_bytes,
            "temporary_bytes": activations.loss_temporary_bytes(job),
            "activations_bytes": sum(self.kept),
            "gathered_gradients_bytes": self.unreduced(number),
        }
        held = 0 if job.layout.reshard else layers
        yield self.moment(BACKWARD, "loss", number, base, layers=held, **loss)
        for layer in range(layers, 0, -1):
            above = sum(self.parameters[layer:])
            share = base.gradients_bytes * above // job.shape.parameters().total
            leaves = {
                "gradients_bytes": base.gradients_bytes if present else share,
                "head_bytes": activations.embedding_activation_bytes(job),
                "activations_bytes": sum(self.kept[:layer]),
                "temporary_bytes": self.temporary[layer - 1],
            }
            yield self.moment(BACKWARD, f"layer {layer}", number, base, layers=layer, **leaves)
        end = {"activations_bytes": self.kept[0], "temporary_bytes": self.temporary[0]}
        yield self.moment(BACKWARD, "layer 1, end", number, self.in_pass, layers=1, **end)

    def unreduced(self, number: int) -> int:
        """Bytes of unsharded gradients of earlier micro-batches under ZeRO-2 and 3."""
        buffers = self.job.recipe.gathering == "yafsdp" and self.job.layout.zero_stage == 3
        adding = self.job.layout.adds_up and number > 0
        return self.in_pass.gathered_gradients_bytes * (buffers or adding)

    def moment(
        self,
        phase: str,
        what: str,
        number: int,
        bill: MemoryBreakdown,
        *,
        layers: int,
        **leaves: int,
    ) -> StepMoment:
        """A moment with `bill` updated by `leaves`; ZeRO-3 gathers at most `layers` layers."""
        job = self.job
        if job.layout.zero_stage == 3 and job.recipe.gathering != "yafsdp":
            most = job.recipe.gathered_units if job.layout.reshard else len(self.kept)
            local = local_parameters(job.shape, job.layout)
            each = local.layer_dense * (job.layout.shard_ranks > 1)
            each += local.layer_experts * (job.layout.expert_shard_ranks > 1)
            missing = max(0, most - layers) * each * job.recipe.compute_bytes
            gathered = max(0, bill.gathered_parameters_bytes - missing)
            leaves["gathered_parameters_bytes"] = gathered
        return StepMoment(phase, what, number, replace(bill, **leaves))


check_public(globals())
