"""A small GPT, a training loop, and a ledger of memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer

from course_lib.measure.peak import tensor_bytes

# A GPT-2 style language model, exact enough to count parameters and bytes.


class Attention(nn.Module):
    """Causal self-attention with `heads` heads."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        batch, sequence, hidden = x.shape
        width = hidden // self.heads
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, heads, sequence, width)
        mixed = self.mix(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, hidden))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention: (batch, heads, sequence, width) -> the same."""
        return scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """One pre-norm layer: attention, then an MLP four times as wide."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = mlp(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def mlp(hidden: int) -> nn.Sequential:
    """An MLP hidden -> 4·hidden -> hidden with GELU."""
    return nn.Sequential(
        nn.Linear(hidden, 4 * hidden),
        nn.GELU(),
        nn.Linear(4 * hidden, hidden),
    )


class GPT(nn.Module):
    """Token ids (batch, sequence) in, logits (batch, sequence, vocab) out.

    The head shares the embedding's weights, as in GPT-2. Radford et al. 2019.
    """

    def __init__(
        self, layers: int, hidden: int, heads: int, vocab: int, context: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, heads) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        if places is None:  # the whole sequence, not a slice of it
            places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)  # (…, hidden)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# A minimal training loop that counts samples, micro-steps and updates.


@dataclass
class Counts:
    """Counters of one epoch."""

    samples: int = 0
    micro_steps: int = 0
    updates: int = 0


def train_epoch(
    model: nn.Module,
    optimizer: Optimizer,
    inputs: Tensor,
    targets: Tensor,
    micro_batch: int,
    accumulation: int = 1,
) -> Counts:
    """Train for one epoch of least squares.

    Inputs are (samples, features), targets (samples, 1). Each window of
    `accumulation` micro-batches is one update on its mean loss.
    """
    counts = Counts()
    window_size = micro_batch * accumulation
    for window in torch.arange(len(inputs)).split(window_size):
        for rows in window.split(micro_batch):
            error = model(inputs[rows]) - targets[rows]
            loss = error.square().sum() / len(window)  # share of the mean
            loss.backward()
            counts.micro_steps += 1
            counts.samples += len(rows)
        optimizer.step()
        optimizer.zero_grad()
        counts.updates += 1
    return counts


# A ledger of memory: walk over the tensors and add up their bytes.


def ledger(
    model: nn.Module, optimizer: Any, batch: Iterable[Tensor] = ()
) -> dict[str, int]:
    """Bytes by consumer: weights, gradients, optimizer, inputs and labels.

    `optimizer` has torch's `state`: for each parameter, named tensors. Call
    this after `optimizer.step()`, which creates the state. Step counters (one
    number per tensor) are left out, as in every published convention.
    """
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor) and name != "step"
    ]
    return {
        "weights": tensor_bytes(parameters),
        "gradients": tensor_bytes(gradients),
        "optimizer": tensor_bytes(states),
        "inputs and labels": tensor_bytes(batch),
    }
