"""Pulls and pushes at a parameter server, one by one: which version of the table each one meets.

Messages take no time; a trainer computes between its pull and its push, and pulls again at once.
Sources: Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1; Ho et al. 2013,
"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NeurIPS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from course_lib.checked import checked
from course_lib.validation import flag, number, whole

PULL, WAIT, PUSH, UPDATE = "pull", "wait", "push", "update"
_MOST_EVENTS = 10_000


@dataclass(frozen=True)
class ServedEvent:
    """At `at_s` a trainer pulls rows, must wait for them, or pushes their gradient.

    `version`: updates that the table has seen when the event is over. `late`: of a push, the
    updates since its rows were pulled. "update": all gradients are in, and the table changes; its
    trainer is the last one that pushed. Where trainers do not go together, each push is an update.
    """

    at_s: float
    what: str
    trainer: int
    version: int
    late: int


@dataclass(frozen=True)
class ServedSteps:
    """Trainers that compute for `compute_s` each, and what happened in `until_s`, in order."""

    compute_s: tuple[float, ...]
    until_s: float
    events: tuple[ServedEvent, ...]

    @property
    def pushes(self) -> int:
        """Gradients that have arrived."""
        return sum(event.what == PUSH for event in self.events)

    @property
    def mean_late(self) -> float:
        """By how many updates these were late, on average; 0 without any."""
        return sum(event.late for event in self.events) / max(1, self.pushes)


@checked
def served_steps(
    compute_s: Sequence[float], until_s: float, bound: int | None = None, together: bool = False
) -> ServedSteps:
    """What a server and its trainers do in the first `until_s` seconds.

    `together`: all gradients of a round are summed into one update, and only then are rows served
    again. `bound`: each gradient is an update, but no trainer gets rows for an update that is more
    than so many ahead of the slowest; None: nobody waits. Of two that come at one time the trainer
    with the lower number is first. Raises ValueError for more than some thousand events.
    """
    for place, each in enumerate(compute_s):
        number(f"compute_s[{place}]", each, above=0)
    whole("trainers", len(compute_s))
    number("until_s", until_s, least=0)
    flag("together", together)
    if bound is not None:
        whole("bound", bound, least=0)
        if together:
            raise ValueError("bound is for trainers that do not go together: leave one of them out")
    if until_s / min(compute_s) * len(compute_s) > _MOST_EVENTS:
        raise ValueError(f"until_s {until_s:g} has too many updates to show: take fewer seconds")
    server = _Server(compute_s, 0 if together else bound, together)
    server.run(until_s)
    return ServedSteps(tuple(compute_s), until_s, tuple(server.events))


class _Server:
    """The table's version, and who has rows of which version in hand."""

    def __init__(self, compute_s: Sequence[float], bound: int | None, together: bool) -> None:
        self.compute_s, self.bound, self.together = compute_s, bound, together
        self.version, self.at_s = 0, 0.0
        self.done = [0 for _ in compute_s]  # gradients of each trainer
        self.pulled: dict[int, int] = {}  # by trainer: the version of its rows
        self.waiting: list[int] = []
        self.requests = [(0.0, trainer) for trainer in range(len(compute_s))]
        self.events: list[ServedEvent] = []

    def run(self, until_s: float) -> None:
        while self.requests and self.requests[0][0] <= until_s:
            self.at_s, trainer = heappop(self.requests)
            if trainer in self.pulled:
                self.push(trainer)
            else:
                self.waiting.append(trainer)
                if not self.may_pull(trainer):
                    self.tell(WAIT, trainer)
            for each in [trainer for trainer in self.waiting if self.may_pull(trainer)]:
                self.pull(each)

    def may_pull(self, trainer: int) -> bool:
        return self.bound is None or self.done[trainer] - min(self.done) <= self.bound

    def pull(self, trainer: int) -> None:
        self.waiting.remove(trainer)
        self.pulled[trainer] = self.version
        self.tell(PULL, trainer)
        heappush(self.requests, (self.at_s + self.compute_s[trainer], trainer))

    def push(self, trainer: int) -> None:
        late = self.version - self.pulled.pop(trainer)
        self.done[trainer] += 1
        self.version += not self.together
        self.tell(PUSH, trainer, late)
        if self.together and min(self.done) == max(self.done):
            self.version += 1
            self.tell(UPDATE, trainer)
        heappush(self.requests, (self.at_s, trainer))

    def tell(self, what: str, trainer: int, late: int = 0) -> None:
        self.events.append(ServedEvent(self.at_s, what, trainer, self.version, late))
