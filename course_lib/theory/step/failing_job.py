"""A job that saves, loses a node, waits and resumes: what it does, one stretch after another."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.step.recovery import lost_steps
from course_lib.trace import Event, Trace
from course_lib.validation import number, whole

_MOST_UPDATES = 1000


@dataclass(frozen=True)
class JobCosts:
    """Seconds of an update and of a save, and of the three waits after a failure.

    `notice_s`: until somebody misses the node; `queue_s`: until the job may start again;
    `start_s`: until all ranks train. Raises ValueError below 0, and for an update of 0 s.
    """

    update_s: float
    save_s: float
    notice_s: float
    queue_s: float
    start_s: float

    def __post_init__(self) -> None:
        number("update_s", self.update_s, above=0, most=1e6)
        for name in ("save_s", "notice_s", "queue_s", "start_s"):
            number(name, getattr(self, name), least=0, most=1e6)

    @property
    def restart_s(self) -> float:
        """The three waits together, the R of Young's formula."""
        return self.notice_s + self.queue_s + self.start_s


@dataclass(frozen=True)
class FailingJob:
    """A job of `updates`, saved now and then, that loses a node.

    Its trace: "update", "save", "notice", "queue" and "start", one after the other. The part is how
    many updates are done when that ends; the label of an update is "lost" where the failure undoes
    it, and "again" where it was done before.
    """

    updates: int
    costs: JobCosts
    trace: Trace

    @property
    def total_s(self) -> float:
        """Until the last update is saved."""
        return self.trace[-1].until

    @property
    def failed_s(self) -> float:
        """When the node dies."""
        return next(event.at for event in self.trace if event.what == "notice")

    @property
    def lost(self) -> int:
        """Updates that are done twice."""
        return sum(event.label == "lost" for event in self.trace)

    @property
    def goodput(self) -> float:
        """New work over all time, at the end."""
        return self.updates * self.costs.update_s / self.total_s

    def after(self, events: int) -> tuple[int, int]:
        """Updates done, and of them saved, after the first `events` of the trace."""
        whole("events", events, least=0)
        past = [(event.what, int(str(event.part))) for event in self.trace[:events]]
        saved = max((update for what, update in past if what == "save"), default=0)
        return (past[-1][1] if past else 0), saved


@checked
def failing_job(updates: int, every: int, fails_after: int, costs: JobCosts) -> FailingJob:
    """What the job does, from its first update until its last one is saved.

    The node dies when `fails_after` updates are done, and their save if it was due. What was not
    saved is done again. `updates` are saved at the end, whatever `every` says.
    Raises ValueError for a failure after the last update or later.
    """
    whole("updates", updates, least=2, most=_MOST_UPDATES)
    whole("every", every)
    whole("fails_after", fails_after, most=updates - 1)
    trace = Trace(_events(updates, every, fails_after, costs))
    return FailingJob(updates, costs, trace)


def _events(updates: int, every: int, fails_after: int, costs: JobCosts) -> Iterator[Event]:
    saved = fails_after - lost_steps(fails_after, every)
    waits = [("notice", saved, ""), ("queue", saved, ""), ("start", saved, "")]
    first = _work(range(1, fails_after + 1), every, lambda it: "lost" if it > saved else "")
    second = _work(
        range(saved + 1, updates + 1), every, lambda it: "again" if it <= fails_after else ""
    )
    last = [("save", updates, "")] * (updates % every > 0)
    now = 0.0
    for what, update, label in (*first, *waits, *second, *last):
        end = now + getattr(costs, f"{what}_s")
        yield Event(now, 0, what, update, end=end, label=label)
        now = end


def _work(
    updates: Iterable[int], every: int, label: Callable[[int], str]
) -> Iterator[tuple[str, int, str]]:
    """Updates, and a save after each `every`."""
    for update in updates:
        yield "update", update, label(update)
        if update % every == 0:
            yield "save", update, ""
