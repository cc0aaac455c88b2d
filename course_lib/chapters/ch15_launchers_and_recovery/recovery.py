"""The cost of failures, the best checkpoint interval, and the size of a checkpoint.

M is the mean time between failures of the whole machine, C the time of a save, R of a restart.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from course_lib.checked import Count, CountOrZero, NotNegative, Positive, check_public
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, Recipe
from course_lib.theory.inputs.units import format_number
from course_lib.trace import Event, Trace
from course_lib.validation import number, whole

_LARGEST_EXPONENT = 100.0  # e^100 attempts at one interval
_LARGEST_WASTE = 1e4  # a day of work takes 27 years


def machine_mtbf_s(part_mtbf_s: Positive, parts: Count) -> float:
    """Mean time between failures of `parts` independent parts, each of `part_mtbf_s`: m / n."""
    return part_mtbf_s / parts


def young_interval_s(save_s: Positive, mtbf_s: Positive) -> float:
    """Checkpoint interval, in seconds, that wastes least: √(2·C·M), for C far below M.

    Source: Young 1974, doi:10.1145/361147.361115.
    """
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: Positive, mtbf_s: Positive) -> float:
    """Best interval in seconds for any C: √(2CM)·(1 + √(C/2M)/3 + (C/2M)/9) − C, or M if C ≥ 2M.

    Source: Daly 2006, doi:10.1016/j.future.2004.11.016, equation 37.
    """
    ratio = save_s / (2 * mtbf_s)
    if ratio >= 1:
        return mtbf_s
    return young_interval_s(save_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def wasted_fraction(
    interval_s: Positive, save_s: Positive, mtbf_s: Positive, restart_s: NotNegative = 0.0
) -> float:
    """Overhead time divided by time spent on new work: C/τ + (τ/2 + R)/M.

    A failure loses half an interval τ on average. First order of Young's model, valid only for τ
    and R far below M.
    """
    return save_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def expected_waste(
    interval_s: Positive, save_s: Positive, mtbf_s: Positive, restart_s: NotNegative = 0.0
) -> float:
    """`wasted_fraction` without Young's assumption: (M/τ)·e^(R/M)·(e^((τ + C)/M) − 1) − 1.

    Failures are random, also during saves and restarts. Raises ValueError if the job makes
    practically no progress. Source: Daly 2006, doi:10.1016/j.future.2004.11.016, section 3.
    """
    exponent = (interval_s + save_s + restart_s) / mtbf_s
    if exponent < _LARGEST_EXPONENT:
        again = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
        waste = mtbf_s / interval_s * again - 1
        if waste < _LARGEST_WASTE:
            return max(waste, 0.0)
    raise ValueError(
        f"interval_s {format_number(interval_s)}, save_s {format_number(save_s)} and restart_s "
        f"{format_number(restart_s)} hardly ever end between failures {format_number(mtbf_s)} s "
        "apart: save faster, or more often"
    )


@dataclass(frozen=True)
class Saving:
    """A machine that checkpoints every `interval_s` seconds of work, fails, and restarts."""

    interval_s: float
    save_s: float
    mtbf_s: float
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        expected_waste(self.interval_s, self.save_s, self.mtbf_s, self.restart_s)

    @property
    def parts(self) -> dict[str, float]:
        """The three terms of `wasted_fraction`."""
        return {
            "saving": self.save_s / self.interval_s,
            "work done again": self.interval_s / 2 / self.mtbf_s,
            "restarting": self.restart_s / self.mtbf_s,
        }

    @property
    def waste(self) -> float:
        """`expected_waste` at this interval."""
        return expected_waste(self.interval_s, self.save_s, self.mtbf_s, self.restart_s)

    @property
    def best_interval_s(self) -> float:
        """Daly's interval for this machine."""
        return daly_interval_s(self.save_s, self.mtbf_s)

    @property
    def progress(self) -> float:
        """New work divided by wall-clock time: 1 / (1 + waste)."""
        return 1 / (1 + self.waste)


def lost_steps(done: CountOrZero, every: Count) -> int:
    """Updates since the last save, which have to be repeated: done mod every."""
    return done % every


def mean_lost_steps(every: Count) -> float:
    """Mean of `lost_steps` if a failure is equally likely after any update: (every − 1) / 2."""
    return (every - 1) / 2


def checkpoint_bytes(parameters: Count, recipe: Recipe) -> int:
    """Bytes of weights (the fp32 master copy if there is one) and optimizer states over all ranks.

    AdamW takes 4 + 8 = 12 bytes per parameter, in fp32 and in bf16 with an fp32 master copy.
    """
    weight_bytes = 4 if recipe.master_copy else recipe.weight_bytes
    return parameters * (weight_bytes + OPTIMIZER_STATE_BYTES[recipe.optimizer])


# --- Timeline of a job that saves, loses a node, waits and resumes --------------------------------

_MOST_UPDATES = 1000


_Seconds = Annotated[float, partial(number, least=0, most=1e6)]


@dataclass(frozen=True)
class JobCosts:
    """Seconds of an update and of a save, and of the three waits after a failure.

    `notice_s`: until the failure is detected; `queue_s`: until the job may start again; `start_s`:
    until all ranks train.
    """

    update_s: Annotated[float, partial(number, above=0, most=1e6)]
    save_s: _Seconds
    notice_s: _Seconds
    queue_s: _Seconds
    start_s: _Seconds

    @property
    def restart_s(self) -> float:
        """The three waits together, the R of Young's formula."""
        return self.notice_s + self.queue_s + self.start_s


@dataclass(frozen=True)
class FailingJob:
    """A job of `updates` optimizer updates that checkpoints and loses one node.

    The events of `trace` are "update", "save", "notice", "queue" and "start". An event's `part` is
    the number of updates done when it ends. An update's `label` is "lost" if the failure undoes it,
    and "again" if it repeats a lost one.
    """

    updates: int
    costs: JobCosts
    trace: Trace

    @property
    def total_s(self) -> float:
        """Seconds until the last update is saved."""
        return self.trace[-1].until

    @property
    def failed_s(self) -> float:
        """Time at which the node dies, in seconds."""
        return next(event.at for event in self.trace if event.what == "notice")

    @property
    def lost(self) -> int:
        """Number of updates that are done twice."""
        return sum(event.label == "lost" for event in self.trace)

    @property
    def goodput(self) -> float:
        """Time spent on new work divided by the total time of the job."""
        return self.updates * self.costs.update_s / self.total_s

    def after(self, events: CountOrZero) -> tuple[int, int]:
        """Number of updates done, and number saved, after the first `events` of the trace."""
        past = [(event.what, int(str(event.part))) for event in self.trace[:events]]
        saved = max((update for what, update in past if what == "save"), default=0)
        return (past[-1][1] if past else 0), saved


def failing_job(
    updates: Annotated[int, partial(whole, least=2, most=_MOST_UPDATES)],
    every: Count,
    fails_after: int,
    costs: JobCosts,
) -> FailingJob:
    """Simulate the job from its first update until its last one is saved.

    The node dies after `fails_after` updates, and after their save if one was due. Unsaved updates
    are repeated. The final state is always saved, even if `every` does not divide `updates`.
    Raises ValueError unless the failure comes before the last update.
    """
    whole("fails_after", fails_after, most=updates - 1)
    trace = Trace(_events(updates, every, fails_after, costs))
    return FailingJob(updates, costs, trace)


def _events(updates: int, every: int, fails_after: int, costs: JobCosts) -> Iterator[Event]:
    saved = fails_after - lost_steps(fails_after, every)
    waits = [(what, saved, "") for what in ("notice", "queue", "start")]
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
    """Yield (what, update, label) for each update, and for a save after every `every` updates."""
    for update in updates:
        yield "update", update, label(update)
        if update % every == 0:
            yield "save", update, ""


check_public(globals())
