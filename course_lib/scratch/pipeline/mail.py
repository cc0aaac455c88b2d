"""Messages between the stages of a pipeline, without deadlock.

Nobody waits to send, and a receive begins long before its message is needed.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from course_lib.scratch.pipeline.letters import Letter, Order, Pass, Route
from course_lib.scratch.pipeline.stage import Wires


class Mail:
    """Sends without waiting; receives in the order in which the sender sends.

    So a stage waits for nothing but what its next pass needs, and every order
    that can run at all runs here. `blank(i)` makes the tensor into which a
    message about micro-batch i is received; `way`: see `Route`.

    A trace: two stages, two micro-batches, 1F1B. Stage 0 runs F0 F1 B0 B1 and
    stage 1 runs F0 B0 F1 B1; piece = stage. A letter is (kind, micro-batch,
    piece that it is for). Each stage has read the other's order and knows
    what will come: stage 1 (F 0 to 1), (F 1 to 1), stage 0 (B 0 to 0),
    (B 1 to 0). What stage 1 does:

        at first  begin to receive (F 0 to 1); (F 1 to 1) is left in `queues`
        take F0   needs (F 0 to 1): wait for it, and begin to receive the next
        send F0   nothing: no piece comes after this one
        take B0   nothing: it starts from the loss
        send B0   begin to send (B 0 to 0); `sent` keeps it until it is there
        take F1   needs (F 1 to 1): it travelled while B0 was computed
        send F1, take B1, send B1: as before
        finish    wait for all that is still in `sent`

    Stage 0 meanwhile: `send F0` and `send F1` do not wait. `take B0` waits for
    (B 0 to 0). That is an answer: (F 0 to 1) must have arrived, so its tensor
    leaves `sent` and can be freed.
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
        # By sender: the letters that it will send us, and the one under way.
        self.queues = [
            deque(self.route.between(source, self.stage, order))
            for source, order in enumerate(orders)
        ]
        self.coming: dict[int, tuple[Letter, dist.Work, Tensor]] = {}
        self.box: dict[Letter, Tensor] = {}  # arrived, not yet taken
        # Perhaps still under way: a tensor must live until it has been sent.
        self.sent: dict[Letter, tuple[dist.Work, Tensor]] = {}
        for source in range(len(orders)):
            self._begin_to_receive(source)

    def take(self, work: Pass) -> Tensor | None:
        """What pass `work` needs from another piece, once it is here."""
        letter = self.route.needed(work, self.stage)
        if letter is None:
            return None
        while letter not in self.box:
            self._receive(self.route.stage_of(letter.source))
        if letter.kind == "B":  # an answer: what we sent has arrived
            self._let_go(Letter("F", letter.micro_batch, letter.source))
        return self.box.pop(letter)

    def send(self, work: Pass, result: Tensor | None) -> None:
        """Start to send what pass `work` made to the piece that needs it."""
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
        """Wait until all that was sent has arrived."""
        for letter in list(self.sent):
            self._let_go(letter)

    def _begin_to_receive(self, source: int) -> None:
        """The next letter of `source`, if any: it travels while we compute."""
        if self.queues[source]:
            letter = self.queues[source].popleft()
            tensor = self.blank(letter.micro_batch)
            request = self._start(dist.irecv, tensor, source)
            self.coming[source] = letter, request, tensor

    def _receive(self, source: int) -> None:
        """Put what is coming from `source` into the box; begin the next."""
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
        """`call` is isend or irecv; each direction has its own group."""
        upwards = (peer > self.stage) == (call is dist.isend)
        group = self.group.up if upwards else self.group.down
        number = dist.get_global_rank(group, peer)
        request = call(tensor, number, group=group)
        assert request is not None  # only for a rank outside the group
        return request
