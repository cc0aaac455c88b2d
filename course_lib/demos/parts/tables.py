"""A model whose parameters are a large table, of which each sample uses few rows."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.demos.parts.training import Batch
from course_lib.demos.text import VOCAB, Windows
from course_lib.validation import number, whole


class NgramModel(nn.Module):
    """Scores of the next character: the sum of one row for each n-gram before it."""

    def __init__(self, rows: int, order: int) -> None:
        super().__init__()
        self.order = order
        self.table = nn.Embedding(rows, VOCAB)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (batch, sequence) in, logits (batch, sequence, vocab) out."""
        return self.table(ngrams(tokens, self.table.num_embeddings, self.order)).sum(-2)


def ngrams(tokens: Tensor, rows: int, order: int) -> Tensor:
    """Rows (batch, sequence, order) of the n-grams that end at each token, n = 1 … order.

    An n-gram's row is its hash; what is before the sample counts as token 0.
    """
    code, result = torch.zeros_like(tokens), []
    for back in range(order):
        earlier = torch.roll(tokens, back, dims=1)
        earlier[:, :back] = 0
        code = (code * 1009 + earlier * 31 + back + 1) % (2**31 - 1)
        result.append(code % rows)
    return torch.stack(result, dim=-1)


@dataclass(frozen=True)
class TableTraining:
    """A training run of a model with a table: a `demos.parts.training.Run`.

    `model` is ROWSxORDER: rows of the table, and characters of the longest n-gram. Raises
    ValueError for a model or a batch that does not exist.
    """

    model: str
    steps: int
    batch: int
    sequence: int
    learning_rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        whole("steps", self.steps, least=3, most=10_000)
        whole("sequence", self.sequence, least=2, most=4096)
        whole("batch", self.batch, most=len(Windows(self.sequence)))
        number("learning_rate", self.learning_rate, above=0)
        whole("seed", self.seed, least=0, most=2**31)
        rows, order = self.size
        whole("rows of the model", rows, most=10**7)
        whole("order of the model", order, most=min(8, self.sequence))

    @property
    def size(self) -> tuple[int, int]:
        """Rows, order."""
        parts = self.model.split("x")
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            raise ValueError(f"model {self.model!r} is not ROWSxORDER: write for example 8192x3")
        return int(parts[0]), int(parts[1])

    def build(self, device: torch.device | str = "cpu") -> NgramModel:
        """The model with its first weights, the same on every rank."""
        torch.manual_seed(self.seed)
        return NgramModel(*self.size).to(device)

    def batches(self, device: torch.device | str = "cpu") -> list[Batch]:
        """The whole batch of each update."""
        text = Windows(self.sequence)
        numbers = range(self.steps * self.batch)
        rows = [numbers[start : start + self.batch] for start in numbers[:: self.batch]]
        picked = [text.batch(i % len(text) for i in part) for part in rows]
        return [(inputs.to(device), labels.to(device)) for inputs, labels in picked]

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.SGD:
        """Plain SGD, as on the server."""
        return torch.optim.SGD(parameters, lr=self.learning_rate)
