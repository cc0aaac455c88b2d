"""Tensor parallelism of a small GPT: from scratch, by torch, by Megatron-core's layers.

All ranks see the whole batch and hold a part of each matrix; `--sequence-parallel` cuts norms and
residuals along the sequence as well. Run it with `course demo tp --ranks 2`, or under torchrun.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from course_lib import launch
from course_lib.demos.parts import megatron_tp, torch_tp
from course_lib.demos.parts.command import option, run_as_program
from course_lib.demos.parts.command import parse as parse_options
from course_lib.demos.parts.training import Batch, Training, TrainingOptions, mean_loss, one_process
from course_lib.demos.parts.versions import FP32, Comparison, Sent, follow, predicted_sent
from course_lib.demos.text import VOCAB
from course_lib.scratch.ledger import ledger
from course_lib.scratch.tensor.region import TensorParallel
from course_lib.scratch.tensor.sequence import SequenceParallel, sum_copied_gradients
from course_lib.scratch.tensor.vocabulary import (
    cut_gpt,
    vocab_parallel_cross_entropy,
    whole_gradients,
)
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.validation import flag


@dataclass(frozen=True)
class Options(TrainingOptions):
    """What the demo can be asked for."""

    batch: int = option(4, "samples in an update")
    sequence_parallel: bool = option(False, "cut norms and residuals along the sequence")
    library: bool = option(True, "train torch's and Megatron-core's version beside it")
    learning_rate: float = option(3e-3, "AdamW's learning rate")

    def __post_init__(self) -> None:
        for name in ("sequence_parallel", "library"):
            flag(name, getattr(self, name))
        super().__post_init__()

    def layout(self, ranks: int) -> Layout:
        """The same for the theory; raises ValueError if the model cannot be cut like this."""
        layout = Layout(tp=ranks, micro_batch=self.batch, sequence_parallel=self.sequence_parallel)
        layout.check(self.training().shape(), self.sequence)
        return layout


class _Trainee:
    """What the versions share: a cut model, AdamW, and a loss that every rank knows whole."""

    name: str
    loss: Callable[[Batch], Tensor]

    def __init__(self, model: nn.Module, training: Training, ranks: int) -> None:
        self.model, self.ranks = model, ranks
        self.optimizer = training.optimizer(list(model.parameters()))

    def backward(self, batch: Batch) -> Tensor:
        loss = self.loss(batch)
        loss.backward()
        return loss / self.ranks

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stored(self) -> dict[str, int]:
        return ledger(self.model, self.optimizer)


class Scratch(_Trainee):
    """Our own f and g."""

    name = "from scratch"

    def __init__(self, training: Training, region: TensorParallel, device: torch.device) -> None:
        super().__init__(cut_gpt(training.build(device), region), training, region.ranks)
        self.region = region

    def loss(self, batch: Batch) -> Tensor:
        inputs, labels = batch
        return vocab_parallel_cross_entropy(self.model(inputs), labels, self.region).mean()

    def backward(self, batch: Batch) -> Tensor:
        share = super().backward(batch)
        if isinstance(self.region, SequenceParallel):
            sum_copied_gradients(self.model, self.region)
        return share

    def gradients(self) -> dict[str, Tensor]:
        return whole_gradients(self.model, self.region)


class Megatron(Scratch):
    """Megatron-core's layers and its loss; embedding, positions and norms around them are ours."""

    name = "Megatron-core's layers"

    def __init__(self, training: Training, region: TensorParallel, device: torch.device) -> None:
        model = megatron_tp.parallelize(training.build(), region).to(device)
        _Trainee.__init__(self, model, training, region.ranks)
        self.region = region

    def loss(self, batch: Batch) -> Tensor:
        inputs, labels = batch
        return megatron_tp.loss(self.model(inputs), labels).mean()


class Torch(_Trainee):
    """`parallelize_module` and `loss_parallel`."""

    name = "parallelize_module"

    def __init__(self, training: Training, options: Options, rank: launch.Rank) -> None:
        mesh = init_device_mesh(rank.device.type, (rank.world,))
        model = torch_tp.parallelize(training.build(rank.device), mesh, options.sequence_parallel)
        super().__init__(model, training, rank.world)
        for group in self.optimizer.param_groups:
            group["foreach"] = False  # it refuses DTensors beside the uncut, plain parameters

    def backward(self, batch: Batch) -> Tensor:
        with loss_parallel():  # for the backward pass as well
            share = super().backward(batch)
        torch_tp.sum_pending_gradients(self.model)
        return whole_loss(share)

    def loss(self, batch: Batch) -> Tensor:
        return mean_loss(self.model, batch)

    def gradients(self) -> dict[str, Tensor]:
        return torch_tp.fused({name: p.grad for name, p in self.model.named_parameters()})


def whole_loss(loss: Tensor) -> Tensor:
    """A plain tensor: among several ranks `loss_parallel` returns a DTensor."""
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def main(options: Options) -> Comparison:
    """Train each version; every rank returns what it did, beside one process and the theory."""
    rank, training = launch.init(), options.training()
    layout = options.layout(rank.world)
    region = (SequenceParallel if options.sequence_parallel else TensorParallel)()
    reference = one_process(training, rank.device)
    stored, notes = predict_stored(training, layout), []

    def judge(trainee: Any, sent: Sent, stored: dict[str, int]) -> Any:
        return follow(trainee, training, reference, sent, stored)

    versions = [
        judge(Scratch(training, region, rank.device), predict_scratch(training, layout), stored)
    ]
    if options.library:
        trainee = Torch(training, options, rank)
        theirs = predict_torch_stored(training, layout, rank.rank)
        versions.append(judge(trainee, predict_torch(training, layout), theirs))
        reason = megatron_tp.missing(options.sequence_parallel, VOCAB, rank.world)
        if reason:
            notes.append(f"  {Megatron.name}: {reason}")
        else:
            trainee = Megatron(training, region, rank.device)
            versions.append(judge(trainee, predict_scratch(training, layout), stored))
    return Comparison.verified(
        "tensor parallelism" + " with sequence parallelism" * options.sequence_parallel,
        rank,
        training.model,
        reference,
        versions,
        notes=notes,
    )


def predict_scratch(training: Training, layout: Layout) -> Sent:
    """The theory's collectives; under sequence parallelism also one sum of all small gradients.

    Those are the parameters that all ranks hold whole: in each layer two norms and two biases
    after a sum, 6·h; the last norm, 2·h; the positions, s·h.
    """
    sent = predicted_sent(training, layout, "tp")
    if layout.sequence_parallel and layout.tp > 1:
        layers, hidden, _ = training.size
        add_calls(sent, "all-reduce", 1, 4 * hidden * (6 * layers + 2 + training.sequence))
    return sent


def predict_torch(training: Training, layout: Layout) -> Sent:
    """The theory's collectives, and what torch does otherwise.

    Without sequence parallelism q, k and v each sum the gradient of their common input: 2 more
    all-reduces a layer. With it the input is gathered once for the three; each weight and bias of
    a norm has an all-reduce of its own; and the gradient of the positions, s·h, is gathered.
    """
    sent = predicted_sent(training, layout, "tp")
    layers, hidden, _ = training.size
    if layout.tp == 1:
        return sent
    if not layout.sequence_parallel:
        size = 4 * layout.micro_batch * training.sequence * hidden
        add_calls(sent, "all-reduce", 2 * layers, size)
    else:
        add_calls(sent, "all-reduce", 4 * layers + 2, 4 * hidden)
        add_calls(sent, "all-gather", 1, 4 * training.sequence * hidden)
    return sent


def add_calls(sent: Sent, operation: str, calls: int, size_bytes: int) -> None:
    """Put so many calls of that size into a prediction."""
    total = sent.setdefault(operation, [0, 0])
    total[0] += calls
    total[1] += calls * size_bytes


def predict_stored(training: Training, layout: Layout) -> dict[str, int]:
    """Bytes of each rank's states from theory, in a ledger's words; the vocabulary rounded up."""
    states = sharded_states(local_parameters(training.shape(), layout), FP32, layout)
    return {
        "weights": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_state_bytes,
        "inputs and labels": 0,
    }


def predict_torch_stored(training: Training, layout: Layout, rank: int) -> dict[str, int]:
    """The same for torch: its last ranks have fewer words, and rows of padding in weights only."""
    stored, shape = predict_stored(training, layout), training.shape()
    words = -(-shape.vocab // layout.tp)
    missing = min(words, max(0, (rank + 1) * words - shape.vocab)) * shape.hidden
    stored["gradients"] -= 4 * missing
    stored["optimizer"] -= 8 * missing
    return stored


def parse(argv: Sequence[str] | None = None) -> Options:
    """Options from command-line arguments."""
    return parse_options(Options, argv, __doc__)


if __name__ == "__main__":
    run_as_program(main, parse())
