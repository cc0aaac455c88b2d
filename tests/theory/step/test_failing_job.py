"""A job that loses a node: by the recorded one of Slurm, and by the simulated machine."""

import random
from dataclasses import replace
from itertools import groupby

import pytest
from every import every
from probes import Probe

from course_lib import cluster
from course_lib.scratch import recovery
from course_lib.theory.step.failing_job import JobCosts, failing_job

COSTS = JobCosts(360, 60, 300, 120, 180)


def test_the_recorded_job_of_slurm():
    seen = cluster.recorded()
    times, after = seen.times, seen.lost_after
    # The first update ends when training begins; saves are in the time of the others.
    update_s = (times["killed"] - times["training"]) / (after - 1)
    costs = JobCosts(
        update_s,
        0,
        times["requeued"] - times["killed"],
        times["restarted"] - times["requeued"],
        times["resumed"] - times["restarted"],
    )
    job = failing_job(len(seen.losses), seen.every, after, costs)
    zero = times["training"] - update_s
    assert zero + job.failed_s == pytest.approx(times["killed"])
    resumed = next(event for event in job.trace if event.what == "start")
    assert resumed.part == seen.resumed_after
    assert zero + resumed.until == pytest.approx(times["resumed"])
    assert job.lost == seen.repeated
    updates = sum(event.what == "update" for event in job.trace)
    assert updates == len(seen.losses) + seen.repeated
    assert job.total_s == pytest.approx(times["done"] - zero, rel=0.1)


class OneFailure:
    """A random number generator whose machine fails once."""

    def __init__(self, at_s):
        self.times = [at_s]

    def expovariate(self, _):
        return self.times.pop() if self.times else 1e9


@every(("every_", "after"), [(4, 9), (1, 5), (5, 12), (20, 19), (3, 2)])
def test_the_simulated_machine_does_the_same(every_, after):
    job = failing_job(20, every_, after, COSTS)
    draw, recovery.random.Random = recovery.random.Random, lambda seed: OneFailure(job.failed_s)
    try:
        spans = recovery.run(
            20 * COSTS.update_s,
            interval_s=every_ * COSTS.update_s,
            save_s=COSTS.save_s,
            mtbf_s=1.0,
            restart_s=COSTS.restart_s,
        )
    finally:
        recovery.random.Random = draw
    assert random.Random is draw

    def name(event):
        if event.what == "update":
            return "lost" if event.label == "lost" else "work"
        return "save" if event.what == "save" else "restart"

    ours = []
    for kind, group in groupby(job.trace, key=name):
        stretch = list(group)
        ours.append((kind, stretch[0].at, stretch[-1].until))
    assert [tuple(span) for span in spans if span.end_s > span.start_s] == ours
    assert recovery.wasted(spans) == pytest.approx(1 / job.goodput - 1)


def test_the_running_numbers():
    job = failing_job(20, 4, 10, COSTS)
    dies = next(place for place, event in enumerate(job.trace) if event.what == "notice")
    assert job.after(0) == (0, 0) and job.after(len(job.trace)) == (20, 20)
    assert job.after(dies) == (10, 8) and job.after(dies + 1) == (8, 8)
    assert job.failed_s == 3720 and job.trace[dies].until == 4020
    assert job.lost == 2 and job.total_s == 22 * 360 + 5 * 60 + 600
    assert [event.part for event in job.trace if event.label == "again"] == [9, 10]


@every(
    ("call", "message"),
    [
        (lambda: failing_job(20, 4, 20, COSTS), "fails_after must be at most 19"),
        (lambda: failing_job(20, 0, 2, COSTS), "every must be at least 1"),
        (lambda: failing_job(1, 1, 1, COSTS), "updates must be at least 2"),
        (lambda: replace(COSTS, update_s=0), "update_s must be above 0"),
        (lambda: replace(COSTS, queue_s=-1), "queue_s must be at least 0"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


JOBS = [failing_job(20, 4, 10, COSTS), failing_job(10, 3, 5, replace(COSTS, save_s=30))]
PROBES = {
    "FailingJob.after": Probe(JOBS[0].after, {"events": 3}, {"events": 9}),
    "failing_job": Probe(
        failing_job,
        {"updates": 20, "every": 4, "fails_after": 10, "costs": COSTS},
        {"updates": 21, "every": 5, "fails_after": 11, "costs": replace(COSTS, start_s=1)},
    ),
}
RECORDS = {"FailingJob": JOBS, "JobCosts": [COSTS, JobCosts(1, 2, 3, 4, 5)]}
