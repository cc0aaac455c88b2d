"""A model with a large table of parameters, of which each sample uses few rows."""

from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.demos.shared.options import TrainingOptions, option
from course_lib.demos.shared.text import VOCAB
from course_lib.demos.shared.training import Run
from course_lib.validation import whole


class NgramModel(nn.Module):
    """Predicts the next character: its scores are the sum of a row for each preceding n-gram."""

    def __init__(self, rows: int, order: int) -> None:
        super().__init__()
        self.order = order
        self.table = nn.Embedding(rows, VOCAB)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (batch, sequence) in, logits (batch, sequence, vocab) out."""
        rows: Tensor = self.table(ngrams(tokens, self.table.num_embeddings, self.order))
        return rows.sum(-2)


def ngrams(tokens: Tensor, rows: int, order: int) -> Tensor:
    """Rows (batch, sequence, order) of the n-grams that end at each token, n = 1 … order.

    An n-gram's row is its hash; positions before the sample count as token 0.
    """
    code, result = torch.zeros_like(tokens), []
    for back in range(order):
        earlier = torch.roll(tokens, back, dims=1)
        earlier[:, :back] = 0
        code = (code * 1009 + earlier * 31 + back + 1) % (2**31 - 1)
        result.append(code % rows)
    return torch.stack(result, dim=-1)


@dataclass(frozen=True)
class TableOptions(TrainingOptions, ABC):
    """The options of a demo that trains a table."""

    model: str = option("8192x3", "ROWSxORDER: rows of the table, characters in the longest n-gram")
    batch: int = option(8, "samples of all trainers in one update")


@dataclass(frozen=True)
class TableRun(Run):
    """A training run of a model with a table.

    `model` is ROWSxORDER: rows of the table, and characters of the longest n-gram. Raises
    ValueError for a model that does not exist.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        rows, order = self.size
        whole("rows of the model", rows, most=10**7)
        whole("order of the model", order, most=min(8, self.sequence))

    @property
    def size(self) -> tuple[int, int]:
        """(rows, order)."""
        parts = self.model.split("x")
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            raise ValueError(f"model {self.model!r} is not ROWSxORDER: write for example 8192x3")
        return int(parts[0]), int(parts[1])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Plain SGD, as on the server."""
        return torch.optim.SGD(parameters, lr=self.learning_rate)


@dataclass(frozen=True)
class TableTraining(TableRun):
    """A training run of NgramModel."""

    def build(self, device: torch.device | str = "cpu") -> NgramModel:
        """The model with its initial weights, equal on every rank."""
        torch.manual_seed(self.seed)
        return NgramModel(*self.size).to(device)
