"""The pipeline demo: stages that sleep, what does not fit, and the learner's own pipeline."""

import itertools

import pytest
from together import keep_mine

from course_lib import demos, figures
from course_lib.chapters.ch11_pipelines import panels
from course_lib.chapters.ch11_pipelines.demos import pipeline

SMALL = {"model": "5x16x2", "sequence": 8, "batch": 8, "micro_batches": 4, "steps": 3}


def run(ranks=2, **options):
    settings = {**SMALL, "sleep_ms": 0.0, **options}
    return demos.run("pipeline", ranks=ranks, stream=False, **settings)


def slept(schedule):
    result = run(3, model="6x16x2", micro_batches=6, batch=6, sleep_ms=20.0, schedule=schedule)
    return {run_.schedule: run_ for run_ in result.sleeping}, result.report()


@pytest.fixture(scope="module")
def asleep():
    """Stages that sleep need no cores, but a busy machine wakes them late: the best of four."""
    runs, report = slept("all")
    assert "1f1b asleep: " in report
    for name in pipeline.SCHEDULES:
        for _ in range(3):
            if runs[name].makespan > 1.1 * runs[name].predicted_makespan:
                again = slept(name)[0][name]
                runs[name] = min(runs[name], again, key=lambda run_: run_.makespan)
    return runs


def spent(tasks):
    """Seconds that all stages together are at work."""
    return sum(task.end - task.start for task in tasks)


def test_sleeping_stages_take_the_predicted_time(asleep):
    assert list(asleep) == list(pipeline.SCHEDULES)
    for run_ in asleep.values():
        # On a busy machine all sleep longer than they asked for: that is not the schedule's doing.
        late = spent(run_.measured) / spent(run_.predicted)
        assert late >= 1 and run_.makespan >= run_.predicted_makespan
        assert run_.makespan < 1.2 * late * run_.predicted_makespan
        worked = spent(run_.measured) / 3 / run_.makespan  # of the time of three stages
        assert 1 - worked == pytest.approx(run_.predicted_bubble_fraction, abs=0.1)
        assert (1 - run_.bubble_fraction) * late == pytest.approx(worked)
        if run_.formula is not None:
            assert run_.predicted_bubble_fraction == pytest.approx(run_.formula)
    makespans = {name: run_.makespan for name, run_ in asleep.items()}
    assert makespans["naive"] > 1.5 * makespans["1f1b"]


def test_the_measured_timeline_has_the_form_of_the_predicted_one(asleep):
    for run_ in asleep.values():
        assert passes(run_.measured) == passes(run_.predicted)
        assert min(task.start for task in run_.measured) == 0
        for _, tasks in itertools.groupby(run_.measured, key=lambda task: task.stage):
            for before, after in itertools.pairwise(tasks):
                assert before.end <= after.start
    charts = {"predicted": asleep["1f1b"].predicted, "measured": asleep["1f1b"].measured}
    sentence = figures.timeline(charts).sentence
    assert sentence.startswith("predicted: 3 stages, 6 micro-batches, from 0 to 480 ms. measured:")


def passes(tasks):
    return [(task.stage, task.kind, task.micro_batch, task.chunk) for task in tasks]


def test_torch_is_left_out_where_one_rank_has_both_ends():
    """It would divide the gradient of the table that both use by the micro-batches twice."""
    result = run(1, schedule="interleaved")
    assert [version.name for version in result.versions] == ["scratch interleaved"]
    both = run(2, schedule="1f1b").versions
    assert [version.name for version in both] == ["scratch 1f1b", "torch 1f1b"]


def test_a_pipeline_of_the_learners_knows_no_v(tmp_path, monkeypatch):
    keep_mine(tmp_path, monkeypatch, "pipeline")
    with pytest.raises(ValueError, match="a Pipeline of yours does not know"):
        pipeline.Options(parts="mine", schedule="zbv").layouts(2)


def test_a_slow_wire_costs_1f1b_more_as_section_11_6_says():
    slow = {"stages": 8, "micro_batches": 16, "transfer": 0.25}
    gpipe, in_turn = (panels.pipeline(name, **slow).result for name in ("gpipe", "1f1b"))
    assert in_turn.makespan > gpipe.makespan
