"""What the hybrid trains: a table and a dense part, and how one process has them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.chapters.ch14_parameter_servers.demos.tables import TableRun, ngrams
from course_lib.demos.shared.text import VOCAB


@dataclass(frozen=True)
class HybridTraining(TableRun):
    """A training run of rows of `hidden` numbers with a dense part behind them."""

    hidden: int = 16

    def build(self, device: torch.device | str = "cpu") -> "OneModel":
        """The model with its first weights, as one process has it."""
        torch.manual_seed(self.seed)
        return OneModel(self).to(device)


class OneModel(nn.Module):
    """Table and dense part in one process."""

    def __init__(self, training: HybridTraining) -> None:
        super().__init__()
        self.training_run = training
        self.table = nn.EmbeddingBag(training.size[0], training.hidden, mode="sum")
        self.dense = nn.Sequential(
            nn.Linear(training.hidden, 4 * training.hidden),
            nn.GELU(),
            nn.Linear(4 * training.hidden, VOCAB),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (batch, sequence) in, logits (batch, sequence, vocab) out."""
        bags = bags_of(tokens, self.training_run)
        scores: Tensor = self.dense(self.table(bags))
        return scores.view(*tokens.shape, VOCAB)


def bags_of(tokens: Tensor, training: HybridTraining) -> Tensor:
    """The rows that each character uses, (batch · sequence, order)."""
    return ngrams(tokens, *training.size).flatten(0, 1)
