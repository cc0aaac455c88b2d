"""Messages between the stages of a pipeline; nobody waits for ever."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.pipeline.stage import Wires

Order = Sequence[Any]  # passes: (kind, micro-batch, chunk, …)


class Letter(NamedTuple):
    """A tensor for piece `to`: activations ("F") or their gradient ("B")."""

    kind: str
    micro_batch: int
    to: int


class Mail:
    """Sends without waiting; receives in the order in which the sender sends.

    A stage then waits for nothing but what its next pass needs, so that every
    order that can run at all runs here. `blank(i)` makes the tensor into
    which a message about micro-batch i is received.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        group: Wires,
        blank: Callable[[int], Tensor],
    ) -> None:
        self.stage, self.stages = dist.get_rank(group.up), len(orders)
        self.pieces = self.stages * (1 + max(work[2] for work in orders[0]))
        self.group, self.blank = group, blank
        self.box: dict[Letter, Tensor] = {}  # arrived, not yet taken
        self.sent: dict[Letter, tuple[Any, Tensor]] = {}  # perhaps on its way
        self.queues = [
            deque(self._to_us(order, source))
            for source, order in enumerate(orders)
        ]
        self.coming: dict[int, tuple[Letter, Any, Tensor]] = {}
        for source in range(self.stages):
            self._expect(source)

    def take(self, work: Any) -> Tensor | None:
        """What pass `work` needs from another piece, once it is here."""
        kind, micro_batch, piece = *work[:2], self._piece(work, self.stage)
        source = piece - 1 if kind == "F" else piece + 1
        if kind == "W" or not 0 <= source < self.pieces:
            return None
        letter = Letter("F" if kind == "F" else "B", micro_batch, piece)
        while letter not in self.box:
            self._receive(source % self.stages)
        if kind != "F":  # an answer: what we sent has arrived
            self._wait(Letter("F", micro_batch, piece + 1))
        return self.box.pop(letter)

    def send(self, work: Any, result: Tensor | None) -> None:
        """Start to send what pass `work` made to the piece that needs it."""
        letter = self._letter(work, self.stage)
        if letter is None:
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

    def _piece(self, work: Any, stage: int) -> int:
        return work[2] * self.stages + stage

    def _letter(self, work: Any, stage: int) -> Letter | None:
        """What `stage` sends after pass `work`, if anything."""
        kind = "F" if work[0] == "F" else "B"
        to = self._piece(work, stage) + (1 if kind == "F" else -1)
        if work[0] == "W" or not 0 <= to < self.pieces:
            return None
        return Letter(kind, work[1], to)

    def _to_us(self, order: Order, source: int) -> list[Letter]:
        """What `source` sends to this stage, in the order of its passes."""
        sent = (self._letter(work, source) for work in order)
        ours = [x for x in sent if x and x.to % self.stages == self.stage]
        return ours if source != self.stage else []

    def _expect(self, source: int) -> None:
        """Begin to receive the next letter: it travels while we compute."""
        if self.queues[source]:
            letter = self.queues[source].popleft()
            tensor = self.blank(letter.micro_batch)
            work = self._start(dist.irecv, tensor, source)
            self.coming[source] = letter, work, tensor

    def _receive(self, source: int) -> None:
        letter, work, tensor = self.coming.pop(source)
        work.wait()
        self.box[letter] = tensor
        self._expect(source)

    def _wait(self, letter: Letter) -> None:
        if letter in self.sent:
            self.sent.pop(letter)[0].wait()

    def _start(self, call: Callable, tensor: Tensor, peer: int) -> Any:
        upwards = (peer > self.stage) == (call is dist.isend)
        group = self.group.up if upwards else self.group.down
        return call(tensor, dist.get_global_rank(group, peer), group=group)
