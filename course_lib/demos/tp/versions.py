"""The versions that the demo tp trains: our own f and g, torch's, and Megatron-core's layers."""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from course_lib import mine
from course_lib.demos.shared.batch import Batch, mean_loss
from course_lib.demos.shared.parts import with_yours
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Training, gradients_of
from course_lib.demos.tp import megatron, torch_tp
from course_lib.scratch.gpt import GPT
from course_lib.scratch.tensor import Pair, SequenceParallel, TensorParallel, sum_copied_gradients
from course_lib.scratch.vocabulary import cut_gpt, whole_gradients

PAIR = ("Copy", "Sum", "ColumnParallelLinear", "RowParallelLinear")
ENDS = ("Gather", "SumScatter")
LOSS = "vocab_parallel_cross_entropy"


def own_pair(parts: str) -> Pair:
    """f, g and the two layers: the course's or, where they are built, the learner's."""
    return Pair(*(mine.get(name, parts) for name in PAIR))


def own_region(parts: str, sequence_parallel: bool) -> TensorParallel:
    """All ranks as a region, whose ends and layers are those of `own_pair`."""
    if not sequence_parallel:
        return TensorParallel(pair=own_pair(parts))
    gather, sum_scatter = (mine.get(name, parts) for name in ENDS)
    return SequenceParallel(pair=own_pair(parts), gather=gather, sum_scatter=sum_scatter)


class Cut(Trainee):
    """A GPT cut over the ranks of a region, and a loss that every rank knows whole."""

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
        """The gradients of all ranks, joined."""
        return whole_gradients(self.model, self.region)


class Scratch(Cut):
    """Our own f and g; the learner's, where `parts` is "mine" and they are built."""

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
        """The mean loss, from logits of which each rank has its own words."""
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
        """Megatron-core's mean loss, from logits of which each rank has its own words."""
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
        """The gradients of all ranks, joined."""
        return torch_tp.fused(gradients_of(self.model))
