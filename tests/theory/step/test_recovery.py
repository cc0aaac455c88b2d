"""Young's and Daly's intervals against a search, a simulation, and a published failure rate."""

import random
from dataclasses import replace

import pytest
from every import every
from probes import Probe, by_name

from course_lib.scratch import recovery
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.step.recovery import (
    Saving,
    checkpoint_bytes,
    daly_interval_s,
    expected_waste,
    lost_steps,
    machine_mtbf_s,
    mean_lost_steps,
    wasted_fraction,
    young_interval_s,
)

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


def simulated_s(work_s, interval_s, save_s, mtbf_s, seed):
    """Time to finish `work_s` of work when failures come at random, saved each `interval_s`."""
    draw = random.Random(seed)
    time_s = done_s = 0.0
    while done_s < work_s:
        until_s = draw.expovariate(1 / mtbf_s)
        intervals = int(until_s // (interval_s + save_s))
        left = -(-(work_s - done_s) // interval_s)
        if intervals >= left:
            return time_s + left * (interval_s + save_s)
        done_s += intervals * interval_s
        time_s += until_s
    return time_s


def test_a_simulation_finds_the_same_waste_and_the_same_best_interval():
    save_s, mtbf_s, work_s = 10, 10_000, 3e7
    best = daly_interval_s(save_s, mtbf_s)
    times = {k: simulated_s(work_s, best * k, save_s, mtbf_s, seed=0) for k in (0.3, 1, 3)}
    assert times[1] == min(times.values())
    assert times[1] / work_s - 1 == pytest.approx(wasted_fraction(best, save_s, mtbf_s), abs=0.006)


def test_llama_3_lost_a_rank_every_three_hours():
    """419 unexpected interruptions in 54 days on 16,384 GPUs: arXiv:2407.21783, section 3.3.4."""
    mtbf_s = 54 * DAY_S / 419
    assert mtbf_s / 3600 == pytest.approx(3.09, abs=0.01)
    assert machine_mtbf_s(16_384 * mtbf_s, 16_384) == pytest.approx(mtbf_s)
    assert young_interval_s(60, mtbf_s) == pytest.approx(1156, abs=1)  # a save of a minute: 19 min


@every("interval_s", [60.0, 300.0, 1156.0, 4000.0])
def test_the_complete_model_is_what_a_run_with_failures_shows(interval_s):
    llama = {"save_s": 60.0, "mtbf_s": 11_135.0, "restart_s": 600.0}
    spans = recovery.run(200 * DAY_S, interval_s=interval_s, **llama)
    seen = recovery.wasted(spans)
    assert seen == pytest.approx(expected_waste(interval_s, **llama), rel=0.03)


def test_the_complete_model_is_youngs_where_failures_are_rare():
    rare = {"interval_s": 100.0, "save_s": 1.0, "mtbf_s": 1e7, "restart_s": 50.0}
    assert expected_waste(**rare) == pytest.approx(wasted_fraction(**rare), rel=1e-3)
    often = {"interval_s": 1156.0, "save_s": 60.0, "mtbf_s": 54 * DAY_S / 419, "restart_s": 600.0}
    assert wasted_fraction(**often) == pytest.approx(0.158, abs=0.001)
    assert expected_waste(**often) == pytest.approx(0.173, abs=0.001)


def test_a_plan_knows_its_parts_and_a_better_one():
    plan = Saving(3600.0, 60.0, 11_135.0, 600.0)
    assert sum(plan.parts.values()) == pytest.approx(wasted_fraction(3600.0, 60.0, 11_135.0, 600.0))
    assert plan.best_interval_s == daly_interval_s(60.0, 11_135.0)
    assert plan.progress == 1 / (1 + plan.waste)
    less, best, more = (replace(plan, interval_s=plan.best_interval_s * k) for k in (0.8, 1, 1.25))
    assert best.waste < min(less.waste, more.waste, plan.waste) and best.progress > plan.progress


def test_lost_updates_and_their_mean():
    assert [lost_steps(done, 4) for done in range(6)] == [0, 1, 2, 3, 0, 1]
    assert mean_lost_steps(4) == sum(lost_steps(done, 4) for done in range(400)) / 400


def test_bytes_of_a_checkpoint():
    fp32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)
    assert checkpoint_bytes(10, fp32) == checkpoint_bytes(10, Recipe()) == 120
    assert checkpoint_bytes(10, Recipe(optimizer="sgd", master_copy=False)) == 20


FAILURES = {"save_s": 60.0, "mtbf_s": 10_000.0}
OTHER_FAILURES = {"save_s": 30.0, "mtbf_s": 20_000.0}
REFUSED = [
    (lambda: young_interval_s(0, 1), "save_s must be above 0"),
    (lambda: daly_interval_s(1, 0), "mtbf_s must be above 0"),
    (lambda: wasted_fraction(0, 1, 1), "interval_s must be above 0"),
    (lambda: wasted_fraction(1, 1, 1, -1), "restart_s must be at least 0"),
    (lambda: expected_waste(1, 1, 1, -1), "restart_s must be at least 0"),
    (lambda: expected_waste(1e4, 1, 10), "hardly ever end between failures 10 s apart"),
    (lambda: Saving(1, 1, 1, 1e3), "save faster, or more often"),
    (lambda: lost_steps(-1, 2), "done must be at least 0"),
    (lambda: mean_lost_steps(0), "every must be at least 1"),
    (lambda: machine_mtbf_s(1, 0), "parts must be at least 1"),
]
PROBES = by_name(
    Probe(machine_mtbf_s, {"part_mtbf_s": 1e8, "parts": 10}, {"part_mtbf_s": 2e8, "parts": 20}),
    Probe(young_interval_s, FAILURES, OTHER_FAILURES),
    Probe(daly_interval_s, FAILURES, OTHER_FAILURES),
    Probe(
        wasted_fraction,
        FAILURES | {"interval_s": 600.0},
        OTHER_FAILURES | {"interval_s": 900.0, "restart_s": 100.0},
    ),
    Probe(
        expected_waste,
        FAILURES | {"interval_s": 600.0},
        OTHER_FAILURES | {"interval_s": 900.0, "restart_s": 100.0},
    ),
    Probe(
        Saving,
        FAILURES | {"interval_s": 600.0},
        OTHER_FAILURES | {"interval_s": 900.0, "restart_s": 100.0},
        see=lambda plan: plan.waste,
    ),
    Probe(lost_steps, {"done": 7, "every": 4}, {"done": 6, "every": 5}),
    Probe(mean_lost_steps, {"every": 4}, {"every": 5}),
    Probe(
        checkpoint_bytes,
        {"parameters": 10, "recipe": Recipe()},
        {"parameters": 11, "recipe": Recipe(optimizer="sgd")},
    ),
)
