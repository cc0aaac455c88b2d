"""Tensor and sequence parallelism: f and g, parallelize_module, Megatron-core's layers.

A small GPT: all ranks see the whole batch and hold a part of each matrix; `--sequence-parallel`
cuts norms and residuals along the sequence as well.
Run it with `course demo tp --ranks 2`, or under torchrun.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel

from course_lib import launch, mine
from course_lib.demos.shared.comparison import Comparison
from course_lib.demos.shared.options import BatchOptions, option, whose_parts, with_yours
from course_lib.demos.shared.prediction import besides, predicted_stored, told, traffic
from course_lib.demos.shared.result import Result
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Batch, Training, gradients_of, mean_loss
from course_lib.demos.tp import megatron, torch_tp
from course_lib.scratch.gpt import GPT
from course_lib.scratch.tensor import (
    Pair,
    SequenceParallel,
    TensorParallel,
    cut_gpt,
    sum_copied_gradients,
    whole_gradients,
)
from course_lib.theory.inputs.layout import Layout
from course_lib.trace import Trace

PAIR = ("Copy", "Sum", "ColumnParallelLinear", "RowParallelLinear")
ENDS = ("Gather", "SumScatter")
LOSS = "vocab_parallel_cross_entropy"


def own_pair(parts: str) -> Pair:
    """f, g and the two layers: the course's, or the learner's where built."""
    return Pair(*(mine.get(name, parts) for name in PAIR))


def own_region(parts: str, sequence_parallel: bool) -> TensorParallel:
    """A region of all ranks, with the functions and layers that `parts` selects."""
    if not sequence_parallel:
        return TensorParallel(pair=own_pair(parts))
    gather, sum_scatter = (mine.get(name, parts) for name in ENDS)
    return SequenceParallel(pair=own_pair(parts), gather=gather, sum_scatter=sum_scatter)


class Cut(Trainee):
    """A GPT sharded over the ranks of a region, with the full loss on every rank."""

    def __init__(self, model: GPT, training: Training, region: TensorParallel) -> None:
        super().__init__(model, training.optimizer(model.parameters()))
        self.region, self.ranks = region, region.ranks

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of the batch, on every rank."""

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of the whole batch."""
        loss = self.loss(batch)
        loss.backward()
        if isinstance(self.region, SequenceParallel):
            sum_copied_gradients(self.model, self.region)
        return loss / self.ranks

    def gradients(self) -> dict[str, Tensor]:
        """The full gradients, gathered from all ranks."""
        return whole_gradients(self.model, self.region)


class Scratch(Cut):
    """Our own f and g, or the learner's if `parts` is "mine" and they are built."""

    def __init__(
        self,
        training: Training,
        region: TensorParallel,
        device: torch.device,
        parts: str = "course",
    ) -> None:
        super().__init__(cut_gpt(training.build(device), region), training, region)
        self.cross_entropy = mine.get(LOSS, parts)
        ends = ENDS if isinstance(region, SequenceParallel) else ()
        self.name = f"from scratch{with_yours(parts, *PAIR, *ends, LOSS)}"

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss, from vocabulary-parallel logits."""
        inputs, labels = batch
        losses: Tensor = self.cross_entropy(self.model(inputs), labels, self.region)
        return losses.mean()


class Megatron(Cut):
    """Megatron-core's layers and its loss; embedding, positions and norms around them are ours."""

    name = "Megatron-core's layers"

    def __init__(self, training: Training, region: TensorParallel, device: torch.device) -> None:
        model = megatron.parallelize(training.build(), region).to(device)
        super().__init__(model, training, region)

    def loss(self, batch: Batch) -> Tensor:
        """Megatron-core's mean loss, from vocabulary-parallel logits."""
        inputs, labels = batch
        return megatron.loss(self.model(inputs), labels).mean()


class Torch(Trainee):
    """`parallelize_module` and `loss_parallel`."""

    name = "parallelize_module"

    def __init__(self, model: nn.Module, training: Training, ranks: int) -> None:
        super().__init__(model, training.optimizer(model.parameters()))
        torch_tp.update_one_by_one(self.optimizer)
        self.ranks = ranks

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of the whole batch."""
        with loss_parallel():  # for the backward pass as well
            loss = mean_loss(self.model, batch)
            loss.backward()
        torch_tp.sum_pending_gradients(self.model)
        return torch_tp.whole_loss(loss) / self.ranks

    def gradients(self) -> dict[str, Tensor]:
        """The full gradients, gathered from all ranks."""
        return torch_tp.fused(gradients_of(self.model))


@dataclass(frozen=True)
class Options(BatchOptions):
    """The options of this demo."""

    batch: int = option(4, "samples in an update; every rank sees all of them")
    sequence_parallel: bool = option(False, "cut norms and residuals along the sequence")
    library: bool = option(True, "train torch's and Megatron-core's version beside it")
    parts: str = whose_parts()

    def layout(self, ranks: int) -> Layout:
        """The theory's layout; raises ValueError if the model cannot be sharded this way."""
        layout = Layout(
            tp=ranks,
            micro_batch=self.batch,
            sequence_parallel=self.sequence_parallel,
            keep_gathered=self.sequence_parallel,
        )
        layout.check(self.training().shape(), self.sequence)
        return layout

    def told(self, layout: Layout, ours: str = "", torchs: str = "") -> Trace:
        """The predicted calls plus extras: `ours` with sequence parallelism, else `torchs`."""
        training = self.training()
        by_theory = told(traffic(training, layout), "tp")
        if layout.tp == 1:
            return by_theory
        where = ours if self.sequence_parallel else torchs
        return Trace([*by_theory, *besides(where, training, layout)])

    def torch_stored(self, layout: Layout, rank: int) -> dict[str, int]:
        """Bytes that a rank stores under torch, which does not round the vocabulary up.

        The last ranks have fewer words, and padding rows in their weights only.
        """
        training = self.training()
        stored, words = predicted_stored(training, layout), -(-VOCAB // layout.tp)
        missing = min(words, max(0, (rank + 1) * words - VOCAB)) * training.size[1]
        stored["gradients"] -= 4 * missing
        stored["optimizer"] -= 8 * missing
        return stored


def main(options: Options) -> Result:
    """Train each version; compares each rank with one process and with the theory."""
    rank, training = launch.init(), options.training()
    layout = options.layout(rank.world)
    region = own_region(options.parts, options.sequence_parallel)
    comparison = Comparison(training)
    sent = options.told(layout, ours="scratch, sequence parallelism")
    stored = predicted_stored(training, layout)
    ours = Scratch(training, region, rank.device, options.parts)
    comparison.follow(ours, sent, stored)
    notes = []
    if options.library:
        mesh, model = init_device_mesh(rank.device.type, (rank.world,)), training.build(rank.device)
        torch_tp.parallelize(model, mesh, options.sequence_parallel)
        torch_version = Torch(model, training, rank.world)
        torchs = options.told(
            layout, "torch, sequence parallelism", torchs="torch, separate q, k and v"
        )
        kept = options.torch_stored(layout, rank.rank)
        comparison.follow(torch_version, torchs, kept)
        reason = megatron.missing(options.sequence_parallel, VOCAB, rank.world)
        if reason:
            notes.append(f"  {Megatron.name}: {reason}")
        else:
            comparison.follow(Megatron(training, region, rank.device), sent, stored)
    technique = "tensor parallelism"
    technique += " with sequence parallelism" * options.sequence_parallel
    return comparison.result(technique, notes=notes)
