"""The pipeline demo: every schedule equal to one process, messages and peaks as predicted."""

import itertools

import pytest
from together import keep_mine, refused, runs

from course_lib import demos, figures, launch
from course_lib.chapters.ch11_pipelines.demos.pipeline import program as pipeline

SMALL = {"model": "5x16x2", "sequence": 8, "batch": 8, "micro_batches": 4, "steps": 3}
BOUNDARY = 4 * 2 * 8 * 16  # one micro-batch of 2 samples: b·s·h in fp32


def run(ranks=2, **options):
    settings = {**SMALL, "sleep_ms": 0.0, **options}
    return demos.run("pipeline", ranks=ranks, stream=False, **settings)


CHUNKS = {"model": "6x16x2", "schedule": "interleaved", "virtual_stages": 3}


@pytest.fixture(scope="module")
def of_two():
    return runs("pipeline", {"all": {}, "chunks": CHUNKS}, **SMALL, sleep_ms=0.0)


@pytest.fixture(scope="module")
def two(of_two):
    return of_two["all"]


@pytest.fixture(scope="module")
def four():
    return run(4, model="9x16x2")


def versions(result):
    return {version.name: version for version in result.versions}


def test_every_schedule_stands_beside_its_library(two, four):
    names = ["scratch naive", "scratch gpipe", "torch gpipe", "scratch 1f1b", "torch 1f1b"]
    names += ["scratch interleaved", "torch interleaved", "scratch zb1p"]
    assert list(versions(four)) == names, "four micro-batches do not fill a V of four stages"
    assert list(versions(two)) == [*names, "scratch zbv"]
    for result in (two, four):  # compared with one process when they were made
        assert all(version.gradient_difference is not None for version in result.versions)


def test_messages_are_as_predicted(two, four):
    """Stage 0 sends each micro-batch on once, with two chunks also between them and back."""
    kinds = itertools.product(("scratch", "torch"), (two, four))
    for kind, result in kinds:
        for name, count in (("gpipe", 4), ("1f1b", 4), ("interleaved", 4 * 3)):
            sent = versions(result)[f"{kind} {name}"].sent
            assert sent["send-recv"] == (count, count * BOUNDARY), (kind, name)


def test_zbv_keeps_one_table(two):
    """Embedding and head are on the first stage, so that nobody sums two copies."""
    ours = versions(two)["scratch zbv"]
    assert ours.sent == ours.predicted_sent == {"send-recv": (8, 8 * BOUNDARY)}
    assert "all-reduce" in versions(two)["scratch 1f1b"].sent
    assert [stage.layers for stage in two.stages["zbv"]] == [[2, 1], [1, 1]]
    assert [stage.most_held for stage in two.stages["zbv"]] == [4, 4]  # chunks


def test_layers_are_divided_unevenly(two, four):
    assert [stage.layers for stage in two.stages["1f1b"]] == [[3], [2]]
    assert [stage.layers for stage in two.stages["interleaved"]] == [[2, 1], [1, 1]]
    assert [stage.layers for stage in four.stages["gpipe"]] == [[3], [2], [2], [2]]
    assert four.stages["interleaved"][0].layers == [2, 1]
    straight = [one for one in two.versions if one.name != "scratch zbv"]
    tables = {version.stored["weights"] for version in straight}
    assert len(tables) == 1


def test_micro_batches_in_flight_are_as_predicted(four):
    held = {name: [stage.most_held for stage in stages] for name, stages in four.stages.items()}
    assert held == {
        "naive": [1, 1, 1, 1],
        "gpipe": [4, 4, 4, 4],
        "1f1b": [4, 3, 2, 1],
        "interleaved": [8, 8, 7, 5],  # chunks
        "zb1p": [4, 4, 4, 4],
    }


def test_more_chunks_send_more(of_two):
    scratch, library = of_two["chunks"].versions
    assert scratch.sent["send-recv"][0] == library.sent["send-recv"][0] == 4 * 5


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
        assert run_.bubble_fraction == pytest.approx(run_.predicted_bubble_fraction, abs=0.1)
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


def test_stages_share_one_clock(asleep):
    """No stage begins a forward pass before the stage in front of it has ended its own."""
    tasks = asleep["1f1b"].measured
    times = {(t.stage, t.kind, t.micro_batch): (t.start, t.end) for t in tasks}
    for (stage, kind, i), (start, _) in times.items():
        before = stage - 1 if kind == "F" else stage + 1
        if 0 <= before < 3:
            assert times[before, kind, i][1] <= start


def passes(tasks):
    return [(task.stage, task.kind, task.micro_batch, task.chunk) for task in tasks]


def test_what_does_not_fit_the_ranks_is_explained():
    of_three = [
        ({"model": "2x16x2"}, "pp.virtual_stages 3 leaves a stage without a layer"),
        (
            {"schedule": "zbv", "model": "6x16x2"},
            "accumulation of zbv must be at least 5",
        ),
        (
            {"schedule": "interleaved"},
            "accumulation 4 is not divisible by pp 3",
        ),
    ]
    refused("pipeline", of_three, ranks=3, **SMALL)
    of_two = {"model": "3x16x2", "schedule": "interleaved"}
    refused("pipeline", [(of_two, "virtual_stages 4 leaves a stage")], **SMALL)


def test_the_learners_pipeline_is_run(tmp_path, monkeypatch):
    keep_mine(tmp_path, monkeypatch, "pipeline")
    result = run(2, parts="mine", sleep_ms=1.0)
    names = [f"your Pipeline {name}" for name in ("naive", "gpipe", "1f1b", "interleaved")]
    assert [name for name in versions(result) if not name.startswith("torch")] == names
    assert len(result.sleeping) == 4 and "your Pipeline 1f1b: " in result.report()
    assert "scratch naive" in versions(run(2, schedule="naive"))


def test_a_pipeline_of_the_learners_knows_no_v(tmp_path, monkeypatch):
    keep_mine(tmp_path, monkeypatch, "pipeline")
    with pytest.raises(ValueError, match="a Pipeline of yours does not know"):
        pipeline.Options(parts="mine", schedule="zbv").layouts(2)


def test_a_wrong_one_of_the_learners_is_found_out(tmp_path, monkeypatch):
    sum_instead = ("/ count_tokens(self.window)", "")
    keep_mine(tmp_path, monkeypatch, "pipeline", sum_instead)
    with pytest.raises(
        launch.RankFailed, match="your Pipeline gpipe: the loss of update 0 differs"
    ):
        run(2, parts="mine", schedule="gpipe")
