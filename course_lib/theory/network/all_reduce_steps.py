"""An all-reduce message by message: who sends which part to whom, and what is summed in it."""

from dataclasses import dataclass

from course_lib.validation import whole

_MOST_RANKS = 32  # the states of all ranks after every step are kept

Summands = tuple[int, ...]  # the ranks whose numbers are in a sum, in order
Held = tuple[tuple[Summands, ...], ...]  # by rank, then by part


@dataclass(frozen=True)
class PartSent:
    """One message: a part of the tensor with the sum that the sender has of it."""

    sender: int
    receiver: int
    part: int
    summands: Summands
    adds: bool  # the receiver adds it to its own; otherwise it takes its place


@dataclass(frozen=True)
class AllReduceStep:
    """The messages of one step, which travel at once, and what each rank holds after it."""

    sent: tuple[PartSent, ...]
    held: Held


@dataclass(frozen=True)
class AllReduceSteps:
    """All steps of an all-reduce of `ranks` ranks, of a tensor cut into `parts`.

    `moments[0]` is the situation before the first step, without messages.
    """

    algorithm: str
    ranks: int
    parts: int
    moments: tuple[AllReduceStep, ...]

    @property
    def steps(self) -> int:
        """Messages that follow each other."""
        return len(self.moments) - 1

    @property
    def complete(self) -> Summands:
        """The summands of a finished sum: all ranks."""
        return tuple(range(self.ranks))

    def sent_parts(self, rank: int, steps: int) -> int:
        """Parts that `rank` has sent after so many steps."""
        whole("rank", rank, least=0, most=self.ranks - 1)
        whole("steps", steps, least=0, most=self.steps)
        moments = self.moments[: steps + 1]
        return sum(message.sender == rank for moment in moments for message in moment.sent)


def ring_steps(ranks: int) -> AllReduceSteps:
    """The ring: n-1 steps in which parts are added, n-1 in which sums are copied.

    Part i sets out at rank i+1 and is complete at rank i. Raises ValueError for fewer than 2 or
    more than 32 ranks. Source: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, section 3.
    """
    whole("ranks", ranks, least=2, most=_MOST_RANKS)
    rounds = []
    for step in range(1, ranks):
        rounds.append([(r, (r + 1) % ranks, (r - step) % ranks, True) for r in range(ranks)])
    for step in range(ranks - 1):
        rounds.append([(r, (r + 1) % ranks, (r - step) % ranks, False) for r in range(ranks)])
    return _follow("ring", ranks, ranks, rounds)


def tree_steps(ranks: int) -> AllReduceSteps:
    """The binomial tree: sums go up to rank 0 in ceil(log2 n) steps, and the same way down.

    The whole tensor is one part. Raises ValueError for fewer than 2 or more than 32 ranks. Source:
    Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, sections 4.2 and 4.4.
    """
    whole("ranks", ranks, least=2, most=_MOST_RANKS)
    reaches = [1 << level for level in range((ranks - 1).bit_length())]
    up = [[(r, r - reach, 0, True) for r in range(reach, ranks, 2 * reach)] for reach in reaches]
    down = [[(to, by, part, False) for by, to, part, _ in level] for level in reversed(up)]
    return _follow("tree", ranks, 1, [*up, *down])


def _follow(
    algorithm: str, ranks: int, parts: int, rounds: list[list[tuple[int, int, int, bool]]]
) -> AllReduceSteps:
    """Let the messages (sender, receiver, part, adds) of each round travel at once."""
    held: list[list[Summands]] = [[(rank,)] * parts for rank in range(ranks)]
    moments = [AllReduceStep((), _frozen(held))]
    for messages in rounds:
        sent = tuple(
            PartSent(sender, receiver, part, held[sender][part], adds)
            for sender, receiver, part, adds in messages
        )
        for one in sent:
            own = held[one.receiver][one.part] if one.adds else ()
            held[one.receiver][one.part] = tuple(sorted(own + one.summands))
        moments.append(AllReduceStep(sent, _frozen(held)))
    return AllReduceSteps(algorithm, ranks, parts, tuple(moments))


def _frozen(held: list[list[Summands]]) -> Held:
    return tuple(tuple(row) for row in held)
