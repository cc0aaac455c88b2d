"""A run that fails, on a clock of its own: what the machine does, and when.

Failures come at random and without memory, `mtbf_s` apart on average, during
work, saves and restarts alike. Nothing sleeps; a year takes a moment.
"""

import random
from typing import NamedTuple


class Span(NamedTuple):
    """What was done from one second to another."""

    kind: str  # "work", "save", "lost" or "restart"
    start_s: float
    end_s: float


def run(
    work_s: float,
    *,
    interval_s: float,
    save_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    seed: int = 0,
) -> list[Span]:
    """All that happens until `work_s` of work is done and saved."""
    draw = random.Random(seed)
    spans, now, done = [], 0.0, 0.0
    failure = draw.expovariate(1 / mtbf_s)
    while done < work_s:
        part_s = min(interval_s, work_s - done)
        worked = now + part_s
        saved = worked + save_s
        if saved <= failure:  # the interval is safe
            spans += [Span("work", now, worked), Span("save", worked, saved)]
            done += part_s
            now = saved
            continue
        spans.append(Span("lost", now, failure))  # since the last save
        now = failure
        failure = now + draw.expovariate(1 / mtbf_s)
        while failure < now + restart_s:  # it fails while it starts
            spans.append(Span("restart", now, failure))
            now = failure
            failure = now + draw.expovariate(1 / mtbf_s)
        spans.append(Span("restart", now, now + restart_s))
        now += restart_s
    return spans


def wasted(spans: list[Span]) -> float:
    """Time not spent on new work over time spent on it."""
    work_s = sum(
        span.end_s - span.start_s for span in spans if span.kind == "work"
    )
    return spans[-1].end_s / work_s - 1
