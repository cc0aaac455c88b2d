"""Vocabulary parallelism: embedding, head and loss, cut by words.

No rank ever has the logits of the whole vocabulary: the loss needs three
all-reduces of one number per token.
Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad

from course_lib.scratch.gpt import GPT, Block
from course_lib.scratch.tensor import TensorParallel, cut_block


class VocabParallelEmbedding(nn.Module):
    """Rows first … first + rows - 1 of the table; other words add zero."""

    def __init__(self, whole: nn.Embedding, region: TensorParallel) -> None:
        super().__init__()
        self.region, self.vocab = region, whole.num_embeddings
        padding = -self.vocab % region.ranks  # rows of zeros, never looked up
        share: Any = region.cut(pad(whole.weight, (0, 0, 0, padding)))
        share.cut["rows"] = self.vocab  # `join` leaves the padding out
        self.weight: nn.Parameter = share  # (vocab / ranks, hidden)
        self.rows = len(self.weight)
        self.first = region.rank * self.rows

    def forward(self, tokens: Tensor) -> Tensor:  # (batch, sequence)
        own = (tokens >= self.first) & (tokens < self.first + self.rows)
        rows = embedding((tokens - self.first) * own, self.weight)
        return self.region.leave(rows * own[..., None])


class VocabParallelHead(nn.Module):
    """Logits of this rank's words; the weights are the embedding's."""

    def __init__(self, table: VocabParallelEmbedding) -> None:
        super().__init__()
        self.region, self.weight = table.region, table.weight
        self.words = min(max(table.vocab - table.first, 0), table.rows)

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        logits = linear(self.region.enter(x), self.weight)
        if self.words < logits.shape[-1]:
            logits[..., self.words :] = -math.inf  # padding is no word
        return logits


class LocalPositions(nn.Module):
    """Learned positions of the tokens that this rank has."""

    def __init__(self, whole: nn.Embedding, region: TensorParallel) -> None:
        super().__init__()
        self.region, self.weight = region, whole.weight

    def forward(self, places: Tensor) -> Tensor:
        return embedding(self.region.own_tokens(places), self.weight)


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, region: TensorParallel
) -> Tensor:
    """Loss of each token, the same on every rank, by three all-reduces.

    log Σ exp(logit) - logit of the label: (batch, sequence). Each sum passes
    its gradient on, so every rank gets softmax - one-hot for its own words.
    """
    top = logits.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=region.group)
    shifted = logits - top[..., None]
    total = region.sum(shifted.exp().sum(-1))
    words = logits.shape[-1]
    local = labels - region.rank * words
    own = (local >= 0) & (local < words)
    label = shifted.gather(-1, (local * own)[..., None]).squeeze(-1)
    return total.log() - region.sum(label.where(own, 0))


def cut_gpt(model: GPT, region: TensorParallel) -> GPT:
    """Cut a whole GPT in place; its forward stays as it is."""
    table = VocabParallelEmbedding(model.embedding, region)
    model.add_module("embedding", table)
    model.add_module("positions", LocalPositions(model.positions, region))
    for block in model.blocks:
        assert isinstance(block, Block)
        cut_block(block, region)
    model.add_module("head", VocabParallelHead(table))  # tied: one shard
    return model


def whole_gradients(
    model: nn.Module, region: TensorParallel
) -> dict[str, Tensor]:
    """Every gradient as one process has it, by name."""
    return {
        name: region.join(p.grad, **p.cut) if hasattr(p, "cut") else p.grad
        for name, p in model.named_parameters()
        if p.grad is not None
    }
