"""A job that saves, loses a node, waits and resumes: what it does, one stretch after another."""

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.step.recovery import lost_steps
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
class JobSpan:
    """A stretch of time: "update", "save", "notice", "queue" or "start".

    `update` is how many updates are done when it ends; `lost`: the failure undoes this update;
    `again`: it was done before.
    """

    kind: str
    update: int
    start_s: float
    end_s: float
    lost: bool = False
    again: bool = False


@dataclass(frozen=True)
class JobMoment:
    """After some spans: the clock, updates that are done and of them saved, and the last span."""

    now_s: float
    done: int
    saved: int
    last: JobSpan | None
    new_work_s: float

    @property
    def goodput(self) -> float:
        """Time spent on updates that are still done, over all time; 1 before anything happens."""
        return self.new_work_s / self.now_s if self.now_s else 1.0


@dataclass(frozen=True)
class FailingJob:
    """A job of `updates`, saved after every `every`, that loses a node after `fails_after`."""

    updates: int
    every: int
    fails_after: int
    costs: JobCosts
    spans: tuple[JobSpan, ...]

    @property
    def total_s(self) -> float:
        """Until the last update is saved."""
        return self.spans[-1].end_s

    @property
    def failed_s(self) -> float:
        """When the node dies."""
        return next(span.start_s for span in self.spans if span.kind == "notice")

    @property
    def lost(self) -> int:
        """Updates that are done twice."""
        return sum(span.lost for span in self.spans)

    @property
    def goodput(self) -> float:
        """New work over all time, at the end."""
        return self.updates * self.costs.update_s / self.total_s

    @property
    def moments(self) -> tuple[JobMoment, ...]:
        """The beginning, and one after each span."""
        found = [JobMoment(0.0, 0, 0, None, 0.0)]
        for span in self.spans:
            done = saved = found[-1].saved
            if span.kind == "update":
                done = span.update
            if span.kind == "save":
                done = saved = span.update
            work_s = done * self.costs.update_s
            found.append(JobMoment(span.end_s, done, saved, span, work_s))
        return tuple(found)


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
    spans = tuple(_spans(updates, every, fails_after, costs))
    return FailingJob(updates, every, fails_after, costs, spans)


def _spans(updates: int, every: int, fails_after: int, costs: JobCosts) -> Iterator[JobSpan]:
    saved = fails_after - lost_steps(fails_after, every)
    now = 0.0
    for update in range(1, fails_after + 1):
        end = now + costs.update_s
        yield JobSpan("update", update, now, end, lost=update > saved)
        now = end
        if update % every == 0:
            yield JobSpan("save", update, now, now + costs.save_s)
            now += costs.save_s
    waits = {"notice": costs.notice_s, "queue": costs.queue_s, "start": costs.start_s}
    for kind, wait_s in waits.items():
        yield JobSpan(kind, saved, now, now + wait_s)
        now += wait_s
    for update in range(saved + 1, updates + 1):
        end = now + costs.update_s
        yield JobSpan("update", update, now, end, again=update <= fails_after)
        now = end
        if update % every == 0 or update == updates:
            yield JobSpan("save", update, now, now + costs.save_s)
            now += costs.save_s
