"""Young's and Daly's intervals against a search, a simulation, and a published failure rate."""

from dataclasses import replace
from itertools import pairwise

import pytest
from every import every
from probes import Probe, by_name

from course_lib.chapters.ch15_launchers_and_recovery import cluster
from course_lib.chapters.ch15_launchers_and_recovery.recovery import (
    JobCosts,
    Saving,
    checkpoint_bytes,
    daly_interval_s,
    expected_waste,
    failing_job,
    lost_steps,
    machine_mtbf_s,
    mean_lost_steps,
    wasted_fraction,
    young_interval_s,
)
from course_lib.scratch import recovery
from course_lib.theory.inputs.recipe import Recipe

DAY_S = 86_400


@every(("save_s", "mtbf_s"), [(10, 10_000), (60, 3 * 3600), (1, 500)])
def test_young_is_the_minimum_of_the_waste(save_s, mtbf_s):
    best = young_interval_s(save_s, mtbf_s)
    least = wasted_fraction(best, save_s, mtbf_s)
    assert all(wasted_fraction(best * k, save_s, mtbf_s) > least for k in (0.5, 0.9, 1.1, 2))
    assert least == pytest.approx((2 * save_s / mtbf_s) ** 0.5)


def test_daly_is_young_less_the_save_for_rare_failures_and_the_mtbf_for_long_saves():
    assert daly_interval_s(1, 1e9) == pytest.approx(young_interval_s(1, 1e9), rel=1e-4)
    assert daly_interval_s(60, 600) < young_interval_s(60, 600)
    assert daly_interval_s(50, 20) == 20
    # C/2M is 1/4: √(2CM) = M, times 1 + 1/6 + 1/36, less M/2.
    assert daly_interval_s(50, 100) == pytest.approx(100 * 25 / 36)


@every("interval_s", [60.0, 300.0, 1156.0, 4000.0])
def test_the_complete_model_is_what_a_run_with_failures_shows(interval_s):
    llama = {"save_s": 60.0, "mtbf_s": 11_135.0, "restart_s": 600.0}
    spans = recovery.run(200 * DAY_S, interval_s=interval_s, **llama)
    seen = recovery.wasted(spans)
    assert seen == pytest.approx(expected_waste(interval_s, **llama), rel=0.03)


def test_a_plan_knows_its_parts_and_a_better_one():
    plan = Saving(3600.0, 60.0, 11_135.0, 600.0)
    assert sum(plan.parts.values()) == pytest.approx(wasted_fraction(3600.0, 60.0, 11_135.0, 600.0))
    assert plan.best_interval_s == daly_interval_s(60.0, 11_135.0)
    assert plan.progress == 1 / (1 + plan.waste)
    less, best, more = (replace(plan, interval_s=plan.best_interval_s * k) for k in (0.8, 1, 1.25))
    assert best.waste < min(less.waste, more.waste, plan.waste) and best.progress > plan.progress


def test_parts_lost_updates_and_bytes_by_hand():
    assert machine_mtbf_s(1000.0, 4) == 250
    assert [lost_steps(done, 4) for done in range(6)] == [0, 1, 2, 3, 0, 1]
    assert mean_lost_steps(4) == sum(lost_steps(done, 4) for done in range(4)) / 4
    fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
    assert checkpoint_bytes(10, fp32) == checkpoint_bytes(10, Recipe()) == 120
    assert checkpoint_bytes(10, Recipe(optimizer="sgd", master_copy=False)) == 20


# --- failing job ---

COSTS = JobCosts(360, 60, 300, 120, 180)


def test_the_recorded_job_of_slurm():
    seen = cluster.recorded()
    times, after = seen.times, seen.lost_after
    # The first update ends when training begins; saves are in the time of the others.
    update_s = (times["killed"] - times["training"]) / (after - 1)
    moments = [times[name] for name in ("killed", "requeued", "restarted", "resumed")]
    costs = JobCosts(update_s, 0, *(end - start for start, end in pairwise(moments)))
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


def test_the_running_numbers():
    job = failing_job(20, 4, 10, COSTS)
    dies = next(place for place, event in enumerate(job.trace) if event.what == "notice")
    assert job.after(0) == (0, 0) and job.after(len(job.trace)) == (20, 20)
    assert job.after(dies) == (10, 8) and job.after(dies + 1) == (8, 8)
    assert job.failed_s == 3720 and job.trace[dies].until == 4020
    assert job.lost == 2 and job.total_s == 22 * 360 + 5 * 60 + 600
    assert [event.part for event in job.trace if event.label == "again"] == [9, 10]


JOBS = [failing_job(20, 4, 10, COSTS), failing_job(10, 3, 5, replace(COSTS, save_s=30))]


REFUSED = [
    (lambda: expected_waste(1e4, 1, 10), "hardly ever end between failures 10 s apart"),
    (lambda: Saving(1, 1, 1, 1e3), "save faster, or more often"),
]
PROBES = by_name(
    Probe(
        failing_job,
        {"updates": 20, "every": 4, "fails_after": 10, "costs": COSTS},
        {"costs": replace(COSTS, start_s=1)},
    )
)
RECORDS = {"FailingJob": JOBS, "JobCosts": [COSTS, JobCosts(1, 2, 3, 4, 5)]}
