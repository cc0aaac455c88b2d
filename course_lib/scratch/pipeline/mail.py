"""Messages between the stages of a pipeline, without deadlock."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.pipeline.stage import Wires


class Pass(Protocol):
    """A pass of a micro-batch through a chunk, such as the theory's `Pass`.

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


class Mail:
    """Sends without waiting; receives in the order in which the sender sends.

    A stage then waits for nothing but what its next pass needs, so every order
    that can run at all runs here. `blank(i)` makes the tensor into which a
    message about micro-batch i is received.

    A trace: two stages, two micro-batches, 1F1B. Stage 0 runs F0 F1 B0 B1 and
    stage 1 runs F0 B0 F1 B1; piece = stage. A letter is (kind, micro-batch,
    piece that it is for). Both stages read both orders, so stage 1 knows what
    will come, in `queues[0]`: (F 0 to 1), (F 1 to 1); and stage 0 has, in
    `queues[1]`: (B 0 to 0), (B 1 to 0). What stage 1 does:

        built     `coming`: (F 0 to 1), its irecv has begun; one left in line
        take F0   needs (F 0 to 1): wait, put it in `box`; begin (F 1 to 1);
                  take (F 0 to 1) out of the box
        send F0   nothing: no piece comes after it
        take B0   nothing: it starts from the loss
        send B0   isend of (B 0 to 0), kept in `sent` until it has arrived
        take F1   needs (F 1 to 1): it travelled while B0 was computed
        take B1, send B1, as for B0; `finish` waits for what is in `sent`

    Stage 0 meanwhile: `send F0` and `send F1` do not wait. `take B0` waits for
    (B 0 to 0). That is an answer: (F 0 to 1) must have arrived, so its tensor
    leaves `sent` and can be freed.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        group: Wires,
        blank: Callable[[int], Tensor],
    ) -> None:
        self.stage, self.stages = dist.get_rank(group.up), len(orders)
        self.pieces = self.stages * (1 + max(work.chunk for work in orders[0]))
        self.group, self.blank = group, blank
        self.box: dict[Letter, Tensor] = {}  # arrived, not yet taken
        # Perhaps still under way: a tensor must live until it has been sent.
        self.sent: dict[Letter, tuple[dist.Work, Tensor]] = {}
        self.queues = [
            deque(self._to_us(order, source))
            for source, order in enumerate(orders)
        ]
        self.coming: dict[int, tuple[Letter, dist.Work, Tensor]] = {}
        for source in range(self.stages):
            self._expect(source)

    def take(self, work: Pass) -> Tensor | None:
        """What pass `work` needs from another piece, once it is here."""
        letter = self._needed(work)
        if letter is None:
            return None
        while letter not in self.box:
            self._receive(letter.source % self.stages)
        if letter.kind == "B":  # an answer: what we sent has arrived
            self._wait(Letter("F", letter.micro_batch, letter.source))
        return self.box.pop(letter)

    def send(self, work: Pass, result: Tensor | None) -> None:
        """Start to send what pass `work` made to the piece that needs it."""
        letter = self._made(work, self.stage)
        if letter is None or result is None:
            return
        to = letter.to % self.stages
        if to == self.stage:
            self.box[letter] = result
        else:
            self.sent[letter] = self._start(dist.isend, result, to), result

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        for letter in list(self.sent):
            self._wait(letter)

    def _piece(self, work: Pass, stage: int) -> int:
        return work.chunk * self.stages + stage

    def _needed(self, work: Pass) -> Letter | None:
        """What must be here before pass `work` of this stage, if anything."""
        kind = "F" if work.kind == "F" else "B"
        letter = Letter(kind, work.micro_batch, self._piece(work, self.stage))
        if work.kind == "W" or not 0 <= letter.source < self.pieces:
            return None
        return letter

    def _made(self, work: Pass, stage: int) -> Letter | None:
        """What `stage` sends after pass `work`, if anything."""
        kind = "F" if work.kind == "F" else "B"
        to = self._piece(work, stage) + (1 if kind == "F" else -1)
        if work.kind == "W" or not 0 <= to < self.pieces:
            return None
        return Letter(kind, work.micro_batch, to)

    def _to_us(self, order: Order, source: int) -> list[Letter]:
        """What `source` sends to this stage, in the order of its passes."""
        if source == self.stage:
            return []
        sent = (self._made(work, source) for work in order)
        return [x for x in sent if x and x.to % self.stages == self.stage]

    def _expect(self, source: int) -> None:
        """Start to receive the next letter: it travels while we compute."""
        if self.queues[source]:
            letter = self.queues[source].popleft()
            tensor = self.blank(letter.micro_batch)
            request = self._start(dist.irecv, tensor, source)
            self.coming[source] = letter, request, tensor

    def _receive(self, source: int) -> None:
        """Put the next letter of `source` into the box; expect another."""
        letter, request, tensor = self.coming.pop(source)
        request.wait()
        self.box[letter] = tensor
        self._expect(source)

    def _wait(self, letter: Letter) -> None:
        if letter in self.sent:
            request, _ = self.sent.pop(letter)
            request.wait()

    def _start(
        self, call: Callable[..., dist.Work | None], tensor: Tensor, peer: int
    ) -> dist.Work:
        upwards = (peer > self.stage) == (call is dist.isend)
        group = self.group.up if upwards else self.group.down
        number = dist.get_global_rank(group, peer)
        request = call(tensor, number, group=group)
        assert request is not None  # only for a rank outside the group
        return request
