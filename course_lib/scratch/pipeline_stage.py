"""Pipeline stages: layers split over ranks, and messages between stages."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from course_lib.scratch.gpt import GPT

# Which tensors are sent between the stages of a pipeline.
#
# A pass needs at most one tensor from another piece of the model, and produces
# at most one for another. So a stage's order of passes determines what it
# sends, to which stage, and in which order. Nothing is sent in this section.


class Pass(Protocol):
    """A pass of a micro-batch through a chunk, like the theory's `Pass`.

    Kind F is forward, B backward; I and W are the halves of B, for the
    gradients of the input and of the weights.
    """

    @property
    def kind(self) -> str: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def chunk(self) -> int: ...


Order = Sequence[Pass]


class Letter(NamedTuple):
    """A tensor for piece `to`: activations ("F") or their gradient ("B")."""

    kind: str
    micro_batch: int
    to: int

    @property
    def source(self) -> int:
        """The piece that sends it."""
        return self.to - 1 if self.kind == "F" else self.to + 1


class Route(NamedTuple):
    """The path of a micro-batch over pieces 0, 1, … of all stages.

    With "rounds", piece q is on stage q % stages. With "v", the second chunk
    runs in reverse, from the last stage to the first. So it does with "both
    ways", where other micro-batches take it, through a second copy of the
    model.
    """

    stages: int
    chunks: int  # pieces on each stage
    way: str = "rounds"

    def needed(self, work: Pass, stage: int) -> Letter | None:
        """The message that pass `work` of `stage` needs first, if any."""
        if work.kind == "W":
            return None  # I has left its input on this stage
        letter = Letter(_kind(work), work.micro_batch, self._at(work, stage))
        return letter if self._joined(letter) else None

    def made(self, work: Pass, stage: int) -> Letter | None:
        """The message that `stage` sends after pass `work`, if any."""
        if work.kind == "W":
            return None  # gradients of weights stay here
        to = self._at(work, stage) + (1 if work.kind == "F" else -1)
        letter = Letter(_kind(work), work.micro_batch, to)
        return letter if self._joined(letter) else None

    def between(
        self, source: int, receiver: int, order: Order
    ) -> list[Letter]:
        """All messages from stage `source` to `receiver`, in pass order."""
        if source == receiver:
            return []
        made = (self.made(work, source) for work in order)
        return [x for x in made if x and self.stage_of(x.to) == receiver]

    def stage_of(self, piece: int) -> int:
        """The stage that holds `piece`."""
        turn, position = divmod(piece, self.stages)
        back = turn and self.way != "rounds"
        return self.stages - 1 - position if back else position

    def _at(self, work: Pass, stage: int) -> int:
        """The piece that pass `work` of `stage` computes."""
        back = work.chunk and self.way != "rounds"
        position = self.stages - 1 - stage if back else stage
        return work.chunk * self.stages + position

    def _joined(self, letter: Letter) -> bool:
        """Whether both pieces of a message exist, on the same path."""
        visits = 1 if self.way == "both ways" else self.chunks
        length = visits * self.stages
        return letter.to // length == letter.source // length


def _kind(work: Pass) -> str:
    return "F" if work.kind == "F" else "B"


# A stage of a pipeline: its layers, and its process groups.


class Part(nn.Module):
    """Layers `start` to `stop - 1` of a GPT, with embedding or head if due.

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
    """This stage's parts of a model split into `layers[0]`, `layers[1]`, …

    Piece q is chunk q // stages of stage q % stages. With "v" and "both
    ways" the second chunk counts from the end of the model.
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
    """This rank's groups; a collective call, with the ranks of all pipelines.

    Each direction has its own group, in which only one of two ranks sends, so
    that messages match by order alone: NCCL has no tags.
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
    """Sum the gradients of both copies of the tied table, in place."""
    if any(part.first for part in parts) and any(part.last for part in parts):
        return  # one shared table: autograd has summed both
    for part in parts:
        if part.first or part.last:
            table = part.embedding if part.first else part.head
            assert table.weight.grad is not None  # backward is over
            dist.all_reduce(table.weight.grad, group=group.ends)


def sum_copied_gradients(parts: Sequence[Part], group: Wires) -> None:
    """Sum gradients between a stage and its mirror stage, for "both ways".

    Both hold the same parts; each sends its gradients to the other.
    """
    rank = dist.get_rank(group.up)
    mirror = dist.get_world_size(group.up) - 1 - rank
    in_order = list(parts) if rank < mirror else list(reversed(parts))
    peer = dist.get_global_rank(group.up, mirror)
    there, back = group[:2] if rank < mirror else (group.down, group.up)
    for weight in nn.ModuleList(in_order).parameters():  # a tied one once
        assert weight.grad is not None  # backward is over
        received = torch.empty_like(weight.grad)
        sent = dist.isend(weight.grad, peer, group=there)
        dist.recv(received, peer, group=back)
        assert sent is not None  # only for a rank outside the group
        sent.wait()
        weight.grad += received


# Messages between the stages of a pipeline, without deadlock.
#
# Sends never block, and a receive is posted well before it is needed.


class Mail:
    """Sends without blocking; receives in the order in which the sender sends.

    So a stage waits only for what its next pass needs, and every order that
    can run at all runs without deadlock. `blank(i)` allocates the receive
    buffer for a message of micro-batch i; `way`: see `Route`.

    A trace: two stages, two micro-batches, 1F1B. Stage 0 runs F0 F1 B0 B1 and
    stage 1 runs F0 B0 F1 B1; piece = stage. A letter is (kind, micro-batch,
    destination piece). Each stage knows the other's order, and so what it
    will receive: stage 1 (F 0 to 1), (F 1 to 1), stage 0 (B 0 to 0),
    (B 1 to 0). What stage 1 does:

        at first  post the receive of (F 0 to 1); (F 1 to 1) stays in `queues`
        take F0   needs (F 0 to 1): wait for it, and post the next receive
        send F0   nothing: no piece follows this one
        take B0   nothing: it starts from the loss
        send B0   start to send (B 0 to 0); `sent` keeps it until it arrives
        take F1   needs (F 1 to 1), which was received while B0 computed
        send F1, take B1, send B1: as before
        finish    wait for all sends left in `sent`

    On stage 0, `send F0` and `send F1` do not wait. `take B0` waits for
    (B 0 to 0), a reply: (F 0 to 1) must have arrived, so its tensor is
    removed from `sent` and can be freed.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        group: Wires,
        blank: Callable[[int], Tensor],
        way: str = "rounds",
    ) -> None:
        self.stage = dist.get_rank(group.up)
        self.group, self.blank = group, blank
        chunks = 1 + max(work.chunk for work in orders[0])
        self.route = Route(len(orders), chunks, way)
        # By sender: letters still to receive, and the one in flight.
        self.queues = [
            deque(self.route.between(source, self.stage, order))
            for source, order in enumerate(orders)
        ]
        self.coming: dict[int, tuple[Letter, dist.Work, Tensor]] = {}
        self.box: dict[Letter, Tensor] = {}  # arrived, not yet taken
        # Possibly in flight: a tensor must live until it has been sent.
        self.sent: dict[Letter, tuple[dist.Work, Tensor]] = {}
        for source in range(len(orders)):
            self._begin_to_receive(source)

    def take(self, work: Pass) -> Tensor | None:
        """Wait for and return the tensor that pass `work` needs, if any."""
        letter = self.route.needed(work, self.stage)
        if letter is None:
            return None
        while letter not in self.box:
            self._receive(self.route.stage_of(letter.source))
        if letter.kind == "B":  # a reply: our activations have arrived
            self._let_go(Letter("F", letter.micro_batch, letter.source))
        return self.box.pop(letter)

    def send(self, work: Pass, result: Tensor | None) -> None:
        """Start to send the result of pass `work` to the piece it is for."""
        letter = self.route.made(work, self.stage)
        if letter is None or result is None:
            return
        receiver = self.route.stage_of(letter.to)
        if receiver == self.stage:
            self.box[letter] = result
        else:
            request = self._start(dist.isend, result, receiver)
            self.sent[letter] = request, result

    def finish(self) -> None:
        """Wait for all pending sends."""
        for letter in list(self.sent):
            self._let_go(letter)

    def _begin_to_receive(self, source: int) -> None:
        """Post the receive of the next letter of `source`, if any."""
        if self.queues[source]:
            letter = self.queues[source].popleft()
            tensor = self.blank(letter.micro_batch)
            request = self._start(dist.irecv, tensor, source)
            self.coming[source] = letter, request, tensor

    def _receive(self, source: int) -> None:
        """Wait for the receive from `source`, box it, and post the next."""
        letter, request, tensor = self.coming.pop(source)
        request.wait()
        self.box[letter] = tensor
        self._begin_to_receive(source)

    def _let_go(self, letter: Letter) -> None:
        """Wait until `letter` has been sent; its tensor may then be freed."""
        if letter in self.sent:
            request, _ = self.sent.pop(letter)
            request.wait()

    def _start(
        self, call: Callable[..., dist.Work | None], tensor: Tensor, peer: int
    ) -> dist.Work:
        """Start isend or irecv (`call`) in the group of its direction."""
        upwards = (peer > self.stage) == (call is dist.isend)
        group = self.group.up if upwards else self.group.down
        number = dist.get_global_rank(group, peer)
        request = call(tensor, number, group=group)
        assert request is not None  # only for a rank outside the group
        return request
