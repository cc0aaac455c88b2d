"""What every version of a technique trains: the same small GPT on the same batches of text."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_lib.demos.parts.command import option
from course_lib.demos.text import VOCAB, Windows
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.validation import divisible, flag, number, whole

Batch = tuple[Tensor, Tensor]  # inputs, labels: (batch, sequence)

# Layers x hidden x heads. "tiny" is what tests and notebooks run on a CPU.
MODELS = {"tiny": "2x64x4", "small": "4x128x8", "medium": "8x512x8", "gpt2": "12x768x12"}


@dataclass(frozen=True)
class Training:
    """A training run, as one process would do it.

    `model` is a name in MODELS or LAYERSxHIDDENxHEADS, `batch` the samples of all ranks in one
    update. Raises ValueError for a model that does not exist or does not divide.
    """

    model: str = "tiny"
    steps: int = 5
    batch: int = 8
    sequence: int = 32
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=3, most=100_000)  # first, timed, and logged updates
        whole("batch", self.batch, most=len(Windows(self.sequence)))
        number("learning_rate", self.learning_rate, above=0)
        whole("seed", self.seed, least=0, most=2**31)
        _, hidden, heads = self.size
        divisible("hidden", hidden, "heads", heads)

    @property
    def size(self) -> tuple[int, int, int]:
        """Layers, hidden, heads."""
        numbers = MODELS.get(self.model, self.model).split("x")
        if len(numbers) != 3 or not all(part.isdigit() and int(part) for part in numbers):
            raise ValueError(
                f"model {self.model!r} is neither one of {', '.join(MODELS)} nor "
                "LAYERSxHIDDENxHEADS: write for example 2x64x4"
            )
        layers, hidden, heads = map(int, numbers)
        return layers, hidden, heads

    def build(self, device: torch.device | str = "cpu") -> GPT:
        """The model with its first weights, the same on every rank."""
        torch.manual_seed(self.seed)
        return GPT(*self.size, VOCAB, self.sequence).to(device)

    def shape(self) -> TransformerShape:
        """The same model for the theory."""
        layers, hidden, heads = self.size
        return TransformerShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            vocab=VOCAB,
            context=self.sequence,
        )

    def batches(self, device: torch.device | str = "cpu") -> list[Batch]:
        """The whole batch of each update, (batch, sequence): ranks take their own rows of it."""
        text = Windows(self.sequence)
        starts = range(0, self.steps * self.batch, self.batch)
        rows = [[(start + i) % len(text) for i in range(self.batch)] for start in starts]
        return [tuple(part.to(device) for part in text.batch(numbers)) for numbers in rows]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
        """AdamW, without weight decay, which would hide a missing gradient."""
        return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=0.0)


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a demo that trains; a demo adds its own, and other defaults.

    Raises ValueError, when made, for a training that is not possible.
    """

    trains: ClassVar[type[Training]] = Training

    steps: int = option(5, "optimizer updates")
    model: str = option("tiny", "tiny, small, medium, gpt2 or LAYERSxHIDDENxHEADS")
    batch: int = option(8, "samples of all ranks in one update")
    sequence: int = option(32, "characters in a sample")
    seed: int = option(0, "seed of the weights")
    json: bool = option(False, "print the result as JSON")

    def __post_init__(self) -> None:
        flag("json", self.json)
        self.training()

    def training(self) -> Training:
        """What is trained: all options that `trains` has as well."""
        names = (field.name for field in fields(self.trains))
        return self.trains(**{name: getattr(self, name) for name in names if hasattr(self, name)})


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over all tokens of the batch."""
    inputs, labels = batch
    return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


class Run(Protocol):
    """What must be known of a training run to follow it: Training, or another model's."""

    @property
    def steps(self) -> int:
        """Updates."""

    def build(self, device: torch.device | str = "cpu") -> nn.Module:
        """The model with its first weights, the same on every rank."""

    def batches(self, device: torch.device | str = "cpu") -> list[Batch]:
        """The whole batch of each update."""

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of one process."""


@dataclass(frozen=True)
class OneProcess:
    """What one process finds: the loss of each update, the first gradient, the last weights."""

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def one_process(
    training: Run,
    device: torch.device | str = "cpu",
    loss_of: Callable[[nn.Module, Batch], Tensor] = mean_loss,
    clip: float = 0.0,
) -> OneProcess:
    """Train alone on whole batches: the judge of every parallel version.

    `clip` above 0 is the limit of the gradient's norm; the gradient returned is the one before.
    """
    model = training.build(device)
    optimizer = training.optimizer(list(model.parameters()))
    losses, gradients = [], {}
    for batch in training.batches(device):
        loss = loss_of(model, batch)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters()}
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return OneProcess(losses, gradients, weights)
