"""The pipeline demo's two versions: `scratch.pipeline` and torch.distributed.pipelining."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.functional import cross_entropy

from course_lib import launch, mine
from course_lib.demos.shared.batch import Batch
from course_lib.demos.shared.ranks import from_all_ranks
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training, gradients_of
from course_lib.scratch.pipeline import Pipeline
from course_lib.scratch.pipeline_stage import Wires, cut, sum_tied_gradients
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.pipelines.schedules import Schedule, schedule

LIBRARY = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Staged(Trainee):
    """What both versions share: this rank's parts, and the whole gradient out of all ranks."""

    def __init__(
        self, kind: str, training: Training, layout: Layout, group: Wires, rank: launch.Rank
    ) -> None:
        self.name = f"{kind} {layout.schedule}"
        self.layout, self.group, self.rank = layout, group, rank
        self.plan = plan_of(layout)
        layers, place = layout.chunk_layers(training.shape()), (rank.rank, rank.world)
        self.parts = cut(training.build(rank.device), layers, *place, self.plan.way)
        model = nn.ModuleList(self.parts)
        super().__init__(model, training.optimizer(model.parameters()))

    def gradients(self) -> Mapping[str, Tensor]:
        """The gradients of all stages, by their names in GPT; the head's is the embedding's."""
        parts = (gradients_of(part) for part in self.parts)
        own = {name: gradient.cpu() for part in parts for name, gradient in part.items()}
        return {name: grad for stage in from_all_ranks(own) for name, grad in stage.items()}


class Scratch(Staged):
    """`scratch.pipeline`, which follows the theory's own order of passes.

    `parts`: "mine" runs the learner's own Pipeline instead, where it is built.
    """

    def __init__(
        self,
        training: Training,
        layout: Layout,
        group: Wires,
        rank: launch.Rank,
        parts: str = "course",
    ) -> None:
        theirs = parts == "mine" and mine.is_mine("Pipeline")
        kind = "your Pipeline" if theirs else "scratch"
        super().__init__(kind, training, layout, group, rank)
        pipeline: type[Pipeline] = mine.get("Pipeline", parts)
        # What a learner builds knows no other way than rounds.
        way: dict[str, Any] = {} if self.plan.way == "rounds" else {"way": self.plan.way}
        self.pipeline = pipeline(self.parts, self.plan.orders, group, **way)

    def backward(self, batch: Batch) -> Tensor:
        """All passes of this stage; the one with the model's end returns the loss, others 0."""
        pieces = [part.chunk(self.layout.accumulation) for part in batch]
        return self.pipeline.run(list(zip(*pieces, strict=True)))


class Library(Staged):
    """torch.distributed.pipelining on the same parts; it knows nothing of the tied table."""

    def __init__(self, training: Training, layout: Layout, group: Wires, rank: launch.Rank) -> None:
        super().__init__("torch", training, layout, group, rank)
        places = layout.stage_chunks(rank.rank)
        stages = [
            PipelineStage(part, place, layout.chunks, rank.device)
            for place, part in zip(places, self.parts, strict=True)
        ]
        # Several stages on a rank come as a list, also when they are one.
        several = layout.schedule == "interleaved"
        self.schedule = LIBRARY[layout.schedule](
            stages if several else stages[0],
            n_microbatches=layout.accumulation,
            loss_fn=lambda logits, labels: cross_entropy(logits.flatten(0, 1), labels.flatten()),
        )

    def backward(self, batch: Batch) -> Tensor:
        """One step of the schedule: tokens go in at the first part, labels at the last."""
        inputs, labels = batch
        losses: list[Tensor] = []
        given: dict[str, Any] = {}
        if self.parts[-1].last:
            given = {"target": labels, "losses": losses}
        self.schedule.step(*([inputs] if self.parts[0].first else []), **given)
        sum_tied_gradients(self.parts, self.group)
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.rank.device)


def plan_of(layout: Layout) -> Schedule:
    """The order of passes on every stage."""
    return schedule(layout.schedule, layout.pp, layout.accumulation, layout.virtual_stages)
