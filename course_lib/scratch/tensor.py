"""Tensor, sequence and vocabulary parallelism: sharded weight matrices."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.nn.functional import (
    embedding,
    linear,
    pad,
    scaled_dot_product_attention,
)

from course_lib.scratch.context import SequenceRing
from course_lib.scratch.gpt import GPT, Attention, Block
from course_lib.scratch.wire import all_gather, all_reduce, reduce_scatter

# Tensor-parallel groups, Megatron's f and g, and column/row-parallel layers.
#
# Between f and g every rank works on its shard of a pair of matrices: the
# first is split by columns, the second by rows, so that nothing is exchanged
# in between. Outside the pair, activations are replicated.
# Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.


class Copy(Function):
    """Megatron's f: identity in forward, all-reduce in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduce(gradient, ctx.group), None


class Sum(Function):
    """Megatron's g: all-reduce in forward, identity in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class ColumnParallelLinear(nn.Module):
    """Linear layer split by outputs: (…, in) -> (…, out / ranks)."""

    def __init__(
        self, whole: nn.Linear, region: "TensorParallel", parts: int = 1
    ) -> None:
        super().__init__()
        self.region = region
        self.weight = region.cut(whole.weight, 0, parts)
        self.bias = region.cut(whole.bias, 0, parts)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.region.enter(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Linear layer split by inputs: (…, in / ranks) -> (…, out)."""

    def __init__(self, whole: nn.Linear, region: "TensorParallel") -> None:
        super().__init__()
        self.region = region
        self.weight = region.cut(whole.weight, 1)
        self.bias = nn.Parameter(whole.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        # The bias comes after the sum, or it would be added once per rank.
        return self.region.leave(linear(x, self.weight)) + self.bias


class Pair(NamedTuple):
    """The classes that make up a column/row-parallel pair; replaceable."""

    f: type[Function] = Copy
    g: type[Function] = Sum
    column: type[nn.Module] = ColumnParallelLinear
    row: type[nn.Module] = RowParallelLinear


class TensorParallel:
    """A tensor-parallel group, and how activations enter and leave a pair."""

    def __init__(
        self, group: ProcessGroup | None = None, pair: Pair | None = None
    ) -> None:
        self.group, self.pair = group, pair or Pair()
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)

    def enter(self, x: Tensor) -> Tensor:
        """Apply f, before a column-parallel matrix."""
        return self.pair.f.apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Apply g, after a row-parallel matrix."""
        return self.sum(x)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks, on every rank, by g."""
        return self.pair.g.apply(x, self.group)

    def own_tokens(self, places: Tensor) -> Tensor:
        """The positions whose norms this rank computes: here, all of them."""
        return places

    def cut(self, whole: Tensor, dim: int = 0, parts: int = 1) -> nn.Parameter:
        """This rank's shard of each of `parts` equal parts, as a parameter.

        Its attribute `cut` holds the arguments for `join`.
        """
        ranks, size = self.ranks, whole.shape[dim] // parts
        if size % ranks:
            raise ValueError(
                f"size {size} of a matrix of shape {tuple(whole.shape)} is not"
                f" divisible by {ranks} ranks: change it or the ranks"
            )
        shares = [part.chunk(ranks, dim) for part in whole.chunk(parts, dim)]
        mine = torch.cat([share[self.rank] for share in shares], dim)
        parameter: Any = nn.Parameter(mine.detach().clone())
        parameter.cut = {"dim": dim, "parts": parts}
        return parameter

    def join(
        self, share: Tensor, dim: int, parts: int, rows: int | None = None
    ) -> Tensor:
        """The inverse of `cut`: the full tensor, by one all-gather."""
        shares = all_gather(share[None], self.group)  # (ranks, …)
        pieces = [one.chunk(parts, dim) for one in shares]
        columns = zip(*pieces, strict=True)  # the ranks' pieces of each part
        return torch.cat([p for part in columns for p in part], dim)[:rows]


# A transformer layer, of which every rank holds a shard of each matrix.
#
# Attention and MLP are one pair each, with one all-reduce per pass.
# Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.


class ParallelAttention(nn.Module):
    """Attention with heads / ranks heads on each rank."""

    def __init__(self, whole: Attention, region: TensorParallel) -> None:
        super().__init__()
        if whole.heads % region.ranks:
            raise ValueError(
                f"heads {whole.heads} is not divisible by {region.ranks} ranks"
                ": take a number of ranks that divides the heads"
            )
        self.heads = whole.heads // region.ranks
        # The rows of q come first, then k, then v: cut each of the three.
        self.qkv = region.pair.column(whole.qkv, region, parts=3)
        self.out = region.pair.row(whole.out, region)

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        # (batch, sequence, 3, heads / ranks, width)
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, heads, sequence, width)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def cut_block(block: Block, region: TensorParallel) -> Block:
    """Shard a layer's attention and MLP in place; norms stay replicated."""
    attention = ParallelAttention(block.attention, region)
    block.add_module("attention", attention)
    up, gelu, down = block.mlp
    assert isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    block.mlp = nn.Sequential(
        region.pair.column(up, region), gelu, region.pair.row(down, region)
    )
    return block


# Sequence parallelism: outside the pairs each rank has some of the tokens.
#
# Tensor parallelism repeats norms and residuals on every rank. Here they are
# sharded along the sequence: an all-reduce becomes a reduce-scatter, and an
# all-gather before the next pair; together they send as many bytes.
# Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.


class Gather(Function):
    """Replaces f, into a pair: (b, s / ranks, h) -> (b, s, h)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _along_sequence(all_gather, x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _along_sequence(reduce_scatter, gradient, ctx.group), None


class SumScatter(Function):
    """Replaces g, out of a pair: (b, s, h) -> (b, s / ranks, h)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _along_sequence(reduce_scatter, x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _along_sequence(all_gather, gradient, ctx.group), None


def _along_sequence(
    collective: Callable[..., Tensor], x: Tensor, group: ProcessGroup | None
) -> Tensor:
    # Collectives join and cut the first dimension; the sequence is the second.
    return collective(x.transpose(0, 1), group).transpose(0, 1).contiguous()


class SequenceParallel(TensorParallel):
    """Tensor parallelism with activations sharded by tokens between pairs."""

    def __init__(
        self,
        group: ProcessGroup | None = None,
        pair: Pair | None = None,
        *,
        gather: type[Function] = Gather,
        sum_scatter: type[Function] = SumScatter,
    ) -> None:
        super().__init__(group, pair)
        self.gather, self.sum_scatter = gather, sum_scatter

    def enter(self, x: Tensor) -> Tensor:
        """Gather all tokens, before a column-parallel matrix."""
        return self.gather.apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Reduce-scatter to own tokens, after a row-parallel matrix."""
        if x.shape[1] % self.ranks:
            raise ValueError(
                f"sequence {x.shape[1]} is not divisible by {self.ranks} ranks"
                ": pad it, or do without sequence parallelism"
            )
        return self.sum_scatter.apply(x, self.group)

    def own_tokens(self, places: Tensor) -> Tensor:
        """The positions of this rank's tokens."""
        return places.chunk(self.ranks)[self.rank]


def sum_copied_gradients(model: nn.Module, region: TensorParallel) -> None:
    """Sum the gradients of replicated parameters (norms, biases) over ranks.

    Each rank's cover only its own tokens. One all-reduce sums them all.
    """
    whole = (p for p in model.parameters() if not hasattr(p, "cut"))
    copied = [p.grad for p in whole if p.grad is not None]
    total = all_reduce(torch.cat([g.flatten() for g in copied]), region.group)
    pieces = total.split([g.numel() for g in copied])
    for gradient, piece in zip(copied, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


# Overlapping matmuls with communication: collective matmul, or async TP.
#
# The collectives around a pair are split into one share per rank. While one
# share is in flight, another is multiplied. Tokens are the first dimension.
# Wang et al. 2023, ASPLOS, https://doi.org/10.1145/3567955.3567959.


def gather_and_multiply(
    x: Tensor, weight: Tensor, ring: SequenceRing
) -> Tensor:
    """All-gather, then `linear`: (s, in) -> (ranks·s, out)."""
    parts = {}
    for owner, share in ring.visits(x):  # the next one is in flight
        parts[owner] = linear(share, weight)
    return torch.cat([parts[rank] for rank in range(ring.ranks)])


def multiply_and_scatter(
    x: Tensor, weight: Tensor, ring: SequenceRing
) -> Tensor:
    """`linear`, then reduce-scatter: (ranks·s, in) -> (s, out).

    The sum for each rank's tokens starts at the next rank and goes around the
    ring; it reaches its own rank last, which adds the last part.
    """
    shares, passing = x.chunk(ring.ranks), None
    for step in range(1, ring.ranks + 1):
        home = (ring.rank - step) % ring.ranks
        total = linear(shares[home], weight)  # while the others' sum arrives
        if passing:
            total += passing.wait()
        if home != ring.rank:
            passing = ring.start(total)
    return total


# Vocabulary parallelism: embedding, head and loss, sharded by vocabulary.
#
# No rank ever has the logits of the whole vocabulary: the loss needs three
# all-reduces of one number per token. Shoeybi et al. 2019, section 3.


class VocabParallelEmbedding(nn.Module):
    """Table rows first … first + rows - 1; other token ids contribute 0."""

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
    """Logits of this rank's part of the vocabulary, tied to the embedding."""

    def __init__(self, table: VocabParallelEmbedding) -> None:
        super().__init__()
        self.region, self.weight = table.region, table.weight
        self.words = min(max(table.vocab - table.first, 0), table.rows)

    def forward(self, x: Tensor) -> Tensor:  # (batch, sequence, hidden)
        logits = linear(self.region.enter(x), self.weight)
        if self.words < logits.shape[-1]:
            logits[..., self.words :] = -math.inf  # mask the padding
        return logits


class LocalPositions(nn.Module):
    """Position embeddings of this rank's tokens."""

    def __init__(self, whole: nn.Embedding, region: TensorParallel) -> None:
        super().__init__()
        self.region, self.weight = region, whole.weight

    def forward(self, places: Tensor) -> Tensor:
        return embedding(self.region.own_tokens(places), self.weight)


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, region: TensorParallel
) -> Tensor:
    """Loss of each token, the same on every rank, by three all-reduces.

    log Σ exp(logit) - logit of the label: (batch, sequence). In backward each
    rank gets softmax - one-hot for its own part of the vocabulary.
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
    """Shard a GPT in place over `region`; its forward is unchanged."""
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
    """All gradients, gathered to full tensors, by name."""
    return {
        name: region.join(p.grad, **p.cut) if hasattr(p, "cut") else p.grad
        for name, p in model.named_parameters()
        if p.grad is not None
    }
