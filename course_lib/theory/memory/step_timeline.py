"""The memory of one GPU moment by moment: layer by layer forward and backward, then the update.

`peak.memory_moments` has the four moments at which most may be needed; here they stand among all
others. A pipeline's passes are replayed by `replay.memory_timeline`.
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
    """What happens, and the bytes that are there while it does; micro-batches count from 0."""

    phase: str
    what: str
    micro_batch: int
    bill: MemoryBreakdown


@dataclass(frozen=True)
class StepTimeline:
    """The moments of one update in their order."""

    steps: tuple[StepMoment, ...]

    @property
    def phases(self) -> tuple[str, ...]:
        """The phase of each moment: forward, backward, update."""
        return tuple(step.phase for step in self.steps)

    @property
    def moments(self) -> tuple[str, ...]:
        """What happens at each moment."""
        return tuple(step.what for step in self.steps)

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Bytes of each of the seven consumers at each moment."""
        bills = [step.bill.consumers for step in self.steps]
        return {name: tuple(bill[name] for bill in bills) for name in bills[0]}

    @property
    def trace(self) -> Trace:
        """The same as events: the phase of each moment, and what there is then of each consumer."""
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
        """The moment that needs most, the earliest of equals."""
        return max(self.steps, key=lambda step: step.bill.total_bytes)

    @property
    def peak_bytes(self) -> int:
        """The most at any moment."""
        return self.peak.bill.total_bytes


def step_timeline(
    job: Job, *, first_update: bool = False, overhead_bytes: float = OVERHEAD_BYTES
) -> StepTimeline:
    """What one GPU holds at each moment of an update of `job`, which has no pipeline.

    A layer's activations come with its forward pass and go after its backward pass. With
    gradient_life "backward" the gradients of the layers above are there when a layer begins; those
    of embedding and head come last, as in `memory_moments`, whose moments are "loss", "layer L",
    "layer 1, end" and "update". So the peak is that of `gpu_memory`, but for ZeRO-2 and 3: what
    is whole there for a while only is not counted at other moments, and the peak is at most that.
    What is recomputed is a temporary buffer. `first_update`: the optimizer's states come to be in
    this update. Not counted: a layer's gradients before they are added to those of an earlier
    micro-batch, vectors of gradients that are made to be sent, temporaries of single operations.
    Layers of one kind count as equal. Raises ValueError for a pipeline and for too many moments.
    """
    if job.layout.pp > 1:
        raise ValueError(
            f"pp {job.layout.pp} has passes of several micro-batches at a time: take pp=1, or "
            "replay.memory_timeline"
        )
    listed("moments", 2 * job.shape.layers * job.layout.accumulation, "take fewer layers")
    return StepTimeline(tuple(_Step(job, first_update, overhead_bytes).walk()))


class _Step:
    """The bills of a step, made from those of `memory_moments`."""

    def __init__(self, job: Job, first_update: bool, overhead_bytes: float) -> None:
        self.job = job
        moments = memory_moments(job, overhead_bytes=overhead_bytes)
        self.update = moments["update"]
        hidden = {"optimizer_state_bytes": 0} if first_update else {}
        self.resting = replace(self.update, update_bytes=0, **hidden)
        buffers = ("gathered_parameters_bytes", "gathered_gradients_bytes", "bucket_bytes")
        largest = {name: getattr(moments["backward ends"], name) for name in buffers}
        self.passing = replace(self.resting, **largest)
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
        """All moments, micro-batch after micro-batch."""
        late = self.job.recipe.gradient_life == "backward"
        for number in range(self.job.layout.accumulation):
            yield from self.forward(number, come=not late or number > 0)
            yield from self.backward(number, come=not late or number > 0)
        last = self.job.layout.accumulation - 1
        yield StepMoment(UPDATE, "update", last, self.update)
        after = replace(self.update, update_bytes=0)
        if late:
            after = replace(after, gradients_bytes=0)
        yield StepMoment(UPDATE, "after it", last, after)

    def forward(self, number: int, come: bool) -> Iterator[StepMoment]:
        """Activations pile up. `come`: gradients of earlier micro-batches are there."""
        ends, layers = chunk_activations(self.job, 0), len(self.kept)
        reshard = self.job.layout.reshard
        base = replace(
            self.passing,
            inputs_bytes=ends.inputs_bytes,
            head_bytes=activations.embedding_activation_bytes(self.job),
            gradients_bytes=self.passing.gradients_bytes * come,
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

    def backward(self, number: int, come: bool) -> Iterator[StepMoment]:
        """Activations go, and gradients come."""
        job, layers = self.job, len(self.kept)
        ends = chunk_activations(job, 0)
        base = replace(self.passing, inputs_bytes=ends.inputs_bytes)
        loss = {
            "gradients_bytes": base.gradients_bytes * come,
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
            there = {
                "gradients_bytes": base.gradients_bytes if come else share,
                "head_bytes": activations.embedding_activation_bytes(job),
                "activations_bytes": sum(self.kept[:layer]),
                "temporary_bytes": self.temporary[layer - 1],
            }
            yield self.moment(BACKWARD, f"layer {layer}", number, base, layers=layer, **there)
        end = {"activations_bytes": self.kept[0], "temporary_bytes": self.temporary[0]}
        yield self.moment(BACKWARD, "layer 1, end", number, self.passing, layers=1, **end)

    def unreduced(self, number: int) -> int:
        """Whole gradients that earlier micro-batches have left under ZeRO-2 and 3."""
        buffers = self.job.recipe.gathering == "yafsdp" and self.job.layout.zero_stage == 3
        adding = self.job.layout.adds_up and number > 0
        return self.passing.gathered_gradients_bytes * (buffers or adding)

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
        """A bill with these leaves, and at most `layers` layers whole of those ZeRO-3 gathers."""
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
