"""Training runs on batches of text, and the single-process reference of every version."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from course_lib import launch
from course_lib.demos.shared.text import VOCAB, Windows
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.validation import divisible, number, whole

Batch = tuple[Tensor, Tensor]  # inputs, labels: (batch, sequence)


def both(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply `change` to inputs and labels."""
    inputs, labels = batch
    return change(inputs), change(labels)


def rows_of(batch: Batch, number: int, parts: int) -> Batch:
    """The rows of part `number` of `parts`; an uneven split gives the first parts one row more.

    Raises ValueError for fewer rows than parts.
    """
    if len(batch[0]) < parts:
        raise ValueError(
            f"batch {len(batch[0])} leaves some of {parts} ranks without a sample: "
            f"take at least {parts}"
        )
    return both(lambda tensor: tensor.tensor_split(parts)[number], batch)


def own_rows(batch: Batch, rank: launch.Rank) -> Batch:
    """The rows of this rank; ValueError for a batch with fewer rows than ranks."""
    return rows_of(batch, rank.rank, rank.world)


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy over all tokens of the batch."""
    inputs, labels = batch
    return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


def loss_share(model: nn.Module, rows: Batch, batch: Batch) -> Tensor:
    """The contribution of `rows` to the mean loss of `batch`; all shares add up to the mean."""
    return mean_loss(model, rows) * (len(rows[0]) / len(batch[0]))


# Layers x hidden x heads. Tests and notebooks run "tiny" on a CPU.
MODELS = {"tiny": "2x64x4", "small": "4x128x8", "medium": "8x512x8", "gpt2": "12x768x12"}


@dataclass(frozen=True)
class Run(ABC):
    """A training run, independent of the number of ranks.

    `batch` is the number of samples of all ranks in one update, `sequence` the characters of each.
    Raises ValueError for an impossible run.
    """

    model: str = "tiny"
    steps: int = 5
    batch: int = 8
    sequence: int = 32
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=3, most=100_000)  # first, timed, and logged updates
        whole("sequence", self.sequence, least=2, most=8192)
        whole("batch", self.batch, most=len(Windows(self.sequence)))
        number("learning_rate", self.learning_rate, above=0)
        whole("seed", self.seed, least=0, most=2**31)

    @abstractmethod
    def build(self, device: torch.device | str = "cpu") -> nn.Module:
        """The model with its initial weights, the same on every rank."""

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""

    def batches(self, device: torch.device | str = "cpu") -> list[Batch]:
        """The global batch of each update, (batch, sequence); ranks take their rows of it."""
        text = Windows(self.sequence)
        starts = range(0, self.steps * self.batch, self.batch)
        rows = [[(start + i) % len(text) for i in range(self.batch)] for start in starts]
        return [both(lambda part: part.to(device), text.batch(numbers)) for numbers in rows]


@dataclass(frozen=True)
class Training(Run):
    """A training run of a small GPT.

    `model` is a name in MODELS or LAYERSxHIDDENxHEADS. Raises ValueError for a model that does not
    exist or does not divide.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """The model with its initial weights, the same on every rank."""
        torch.manual_seed(self.seed)
        return GPT(*self.size, VOCAB, self.sequence).to(device)

    def shape(self) -> TransformerShape:
        """The model's shape, as the theory describes it."""
        layers, hidden, heads = self.size
        return TransformerShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=4 * hidden,
            vocab=VOCAB,
            context=self.sequence,
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW without weight decay, which could mask a missing gradient."""
        return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=0.0)


@dataclass(frozen=True)
class OneProcess:
    """The losses of one process, its gradients at the first update, and its final weights."""

    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def one_process(
    run: Run,
    device: torch.device | str = "cpu",
    loss_of: Callable[[nn.Module, Batch], Tensor] = mean_loss,
    clip: float = 0.0,
    batches: Iterable[Batch] | None = None,
) -> OneProcess:
    """Train in one process on global batches (default: the run's), as the reference.

    `clip` above 0 limits the gradient's norm; the returned gradient is unclipped.
    """
    model = run.build(device)
    optimizer = run.optimizer(model.parameters())
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for batch in run.batches() if batches is None else batches:
        loss = loss_of(model, both(lambda part: part.to(device), batch))
        loss.backward()
        losses.append(float(loss.detach()))
        gradients = gradients or {name: g.clone() for name, g in gradients_of(model).items()}
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return OneProcess(losses, gradients, weights)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a model's parameters that have one, by name."""
    named = model.named_parameters()
    return {name: p.grad for name, p in named if p.grad is not None}
