"""Reads the gradient noise off data-parallel training, before and after the all-reduce."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_lib.demos.shared.text import VOCAB, load_text


def train_and_read(rate: float, updates: int, samples: int) -> tuple[float, float]:
    """Train a table by SGD on all ranks. Returns mean |g|² of a rank's gradient, and of the mean.

    Row c of the table holds the logits of what follows character c. Each rank draws `samples`
    characters for each update.
    """
    before, after = load_text()[:-1], load_text()[1:]
    draw = torch.Generator().manual_seed(dist.get_rank())
    table = torch.zeros(VOCAB, VOCAB, requires_grad=True)
    squares = torch.zeros(2)
    for _ in range(updates):
        at = torch.randint(len(after), (samples,), generator=draw)
        loss = cross_entropy(table[before[at]], after[at])
        (gradient,) = torch.autograd.grad(loss, table)
        squares[0] += gradient.square().sum()  # of this rank alone
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        squares[1] += gradient.square().sum()  # of all ranks together
        table.data -= rate * gradient
    dist.all_reduce(squares)
    own, together = squares / dist.get_world_size() / updates
    return float(own), float(together)
