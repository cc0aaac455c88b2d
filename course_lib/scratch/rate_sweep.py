"""A sweep of learning rates on a model small enough to train many of."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer


def final_losses(
    optimizer: Callable[..., Optimizer],
    rates: Sequence[float],
    batch: int,
    text: Tensor,
    vocab: int,
    seen: int = 2**14,
) -> dict[float, float]:
    """{learning rate: mean loss on all of `text`} after `seen` characters.

    The model is a table: row c holds the logits of what comes after character
    c. Each rate trains a table of its own, all on the same random batches.
    """
    before, after = text[:-1], text[1:]
    tables = {
        rate: torch.zeros(vocab, vocab, requires_grad=True) for rate in rates
    }
    update = optimizer(
        [{"params": [table], "lr": rate} for rate, table in tables.items()]
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(seen // batch):
        at = torch.randint(len(after), (batch,), generator=generator)
        update.zero_grad()
        for table in tables.values():
            cross_entropy(table[before[at]], after[at]).backward()
        update.step()
    return {
        rate: float(cross_entropy(table.detach()[before], after))
        for rate, table in tables.items()
    }
