"""A stage of a pipeline: its layers, and its process groups."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.gpt import GPT


class Part(nn.Module):
    """Layers `start` to `stop - 1` of a GPT, and the ends that they touch.

    Parameters keep their names. A last part without the embedding has its own
    copy of the tied table: "head.weight".
    """

    def __init__(self, model: GPT, start: int, stop: int) -> None:
        super().__init__()
        self.hidden = model.norm.weight.numel()
        self.first, self.last = start == 0, stop == len(model.blocks)
        if self.first:
            self.embedding, self.positions = model.embedding, model.positions
        self.blocks = nn.ModuleDict(
            {str(i): model.blocks[i] for i in range(start, stop)}
        )
        if self.last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        if self.first:  # (batch, sequence) -> (batch, sequence, hidden)
            places = torch.arange(x.shape[1], device=x.device)
            x = self.embedding(x) + self.positions(places)
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def cut(
    model: GPT,
    layers: Sequence[int],
    stage: int,
    stages: int,
    way: str = "rounds",
) -> list[Part]:
    """This stage's parts of a model in pieces of `layers[0]`, … layers.

    Piece q lies on stage q % stages, as its chunk q // stages. In a "v" and
    with "both ways" the second chunk counts from the model's end.
    """
    stops = list(accumulate(layers))
    pieces = list(range(stage, len(layers), stages))
    if way != "rounds":
        pieces = [stage, len(layers) - 1 - stage]
    return [Part(model, stops[q] - layers[q], stops[q]) for q in pieces]


class Wires(NamedTuple):
    """The process groups of one pipeline."""

    up: ProcessGroup  # messages to a higher rank
    down: ProcessGroup  # messages to a lower rank
    ends: ProcessGroup  # first and last stage


def wires(pipelines: Sequence[Sequence[int]]) -> Wires:
    """This rank's groups; all ranks call it, with the ranks of all pipelines.

    There is one group for each direction: between two ranks it is then a queue
    in which only one of them sends, which NCCL needs because it has no tags.
    """
    mine = None
    for ranks in map(list, pipelines):
        ends = dist.new_group(sorted({ranks[0], ranks[-1]}))
        group = Wires(dist.new_group(ranks), dist.new_group(ranks), ends)
        mine = group if dist.get_rank() in ranks else mine
    if mine is None:
        raise ValueError(
            f"rank {dist.get_rank()} is in none of the pipelines {pipelines}: "
            "give every rank a stage"
        )
    return mine


def sum_tied_gradients(parts: Sequence[Part], group: Wires) -> None:
    """Both copies of the tied table get the sum of both gradients."""
    if any(part.first for part in parts) and any(part.last for part in parts):
        return  # one table: autograd has added both
    for part in parts:
        if part.first or part.last:
            table = part.embedding if part.first else part.head
            assert table.weight.grad is not None  # backward is over
            dist.all_reduce(table.weight.grad, group=group.ends)


def sum_copied_gradients(parts: Sequence[Part], group: Wires) -> None:
    """With both ways a stage and its mirror image hold the same parts.

    Both get the sum of both gradients: each sends its own to the other.
    """
    rank = dist.get_rank(group.up)
    mirror = dist.get_world_size(group.up) - 1 - rank
    in_order = list(parts) if rank < mirror else list(reversed(parts))
    peer = dist.get_global_rank(group.up, mirror)
    there, back = group[:2] if rank < mirror else (group.down, group.up)
    for weight in nn.ModuleList(in_order).parameters():  # a tied one once
        assert weight.grad is not None  # backward is over
        theirs = torch.empty_like(weight.grad)
        sent = dist.isend(weight.grad, peer, group=there)
        dist.recv(theirs, peer, group=back)
        assert sent is not None  # only for a rank outside the group
        sent.wait()
        weight.grad += theirs
