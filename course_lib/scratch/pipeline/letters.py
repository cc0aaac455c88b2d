"""Which tensors travel between the stages of a pipeline.

A pass needs at most one tensor from another piece of the model, and makes at
most one for another. So whoever knows a stage's order of passes knows what it
will send, to whom, and in which order. Nothing is sent in this module.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


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


class Route(NamedTuple):
    """The way of a micro-batch over pieces 0, 1, … of all stages.

    In "rounds" piece q lies on stage q % stages. In a "v" the second chunk
    of pieces goes back up, from the last stage to the first; so it does with
    "both ways", where it is the way of other micro-batches, through a second
    copy of the model.
    """

    stages: int
    chunks: int  # pieces on each stage
    way: str = "rounds"

    def needed(self, work: Pass, stage: int) -> Letter | None:
        """What must be here before pass `work` of `stage`, if anything."""
        if work.kind == "W":
            return None  # I has left here what it needs
        letter = Letter(_kind(work), work.micro_batch, self._at(work, stage))
        return letter if self._joined(letter) else None

    def made(self, work: Pass, stage: int) -> Letter | None:
        """What `stage` sends after pass `work`, if anything."""
        if work.kind == "W":
            return None  # gradients of weights stay here
        to = self._at(work, stage) + (1 if work.kind == "F" else -1)
        letter = Letter(_kind(work), work.micro_batch, to)
        return letter if self._joined(letter) else None

    def between(
        self, source: int, receiver: int, order: Order
    ) -> list[Letter]:
        """What stage `source` sends to `receiver`, in the order of passes."""
        if source == receiver:
            return []
        made = (self.made(work, source) for work in order)
        return [x for x in made if x and self.stage_of(x.to) == receiver]

    def stage_of(self, piece: int) -> int:
        """The stage on which a piece lies."""
        turn, place = divmod(piece, self.stages)
        back = turn and self.way != "rounds"
        return self.stages - 1 - place if back else place

    def _at(self, work: Pass, stage: int) -> int:
        """The piece that pass `work` of `stage` goes through."""
        back = work.chunk and self.way != "rounds"
        place = self.stages - 1 - stage if back else stage
        return work.chunk * self.stages + place

    def _joined(self, letter: Letter) -> bool:
        """Whether there is such a pair of pieces, on one way."""
        visits = 1 if self.way == "both ways" else self.chunks
        length = visits * self.stages
        return letter.to // length == letter.source // length


def _kind(work: Pass) -> str:
    return "F" if work.kind == "F" else "B"
