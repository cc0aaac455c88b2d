"""Step time: leaves, the simulated pipeline, and what each input changes."""

from dataclasses import replace

import probes
import pytest
from every import every
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs import Cluster, Job, Layout, Link, Recipe, TransformerShape
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.stage import stage_busy_time
from course_lib.theory.step.step_time import step_time

SHAPE = TransformerShape(8, 1024, 16, 4096, 50000, 2048)
MIXTURE = replace(model("mixtral-8x7b"), layers=8, context=2048)
H100 = accelerator("H100-SXM")
FOUR = Cluster(H100, nodes=4)
LAYOUT = Layout(dp=2, tp=4, pp=2, cp=2, sequence_parallel=True, micro_batch=2, accumulation=4)
IDEAL = Link("ideal", 1e17)


def test_what_people_ask_for_follows_from_the_leaves():
    step = step_time(Job(SHAPE, Recipe(recompute="full"), LAYOUT, FOUR))
    leaves = step.leaves()
    assert len(leaves) == 10 and all(value >= 0 for value in leaves.values())
    assert all(name.removesuffix("_s") in step.explain() for name in leaves)
    messages = step.tp_s + step.cp_s + step.ep_s + step.pp_s + step.dp_s
    assert step.communication_s == pytest.approx(messages)
    assert sum(step.parts().values()) == pytest.approx(step.total_s)
    tokens = 2 * 4 * 2 * 2048
    assert step.tokens == tokens and step.gpus == 32
    assert step.tokens_per_s_per_gpu == pytest.approx(tokens / step.total_s / 32)
    flops = training_flops(SHAPE, 16, 2048, mask="causal", recompute="full", attention="flash")
    assert step.mfu == pytest.approx(flops.model_flop / step.total_s / 32 / 989.4e12)
    assert step.hfu == pytest.approx(flops.hardware_flop / step.total_s / 32 / 989.4e12)
    assert step.days(1e9) == pytest.approx(1e9 / step.tokens_per_s / 86400)
    assert step.cost_usd(1e9) == pytest.approx(step.days(1e9) * 24 * 32 * 2.0)


@every(("recompute", "passes"), [("none", 3), ("full", 4)])
def test_the_busiest_experts_compute_more(recompute, passes):
    """Forward, backward twice, and once more when it is recomputed."""
    layout = Layout(dp=8, ep=8, micro_batch=2)
    times = [
        step_time(
            Job(MIXTURE, Recipe(recompute=recompute, imbalance=busy), layout, Cluster(H100))
        ).compute_s
        for busy in (1.0, 1.5)
    ]
    forward = training_flops(MIXTURE, 2, 2048).experts_flop / 3
    rate = 0.75 * FOUR.matmul_flop_per_s
    assert times[1] - times[0] == pytest.approx(0.5 * passes * forward / rate)


@every(("schedule", "virtual"), [(name, 1 + (name == "interleaved")) for name in SCHEDULES])
def test_the_bubble_is_that_of_the_simulated_schedule(schedule, virtual):
    """Equal stages: a model whose embedding and head cost nothing, on links without delay."""
    recipe = Recipe(attention="standard")  # backward is twice forward, half of it for weights
    shape = TransformerShape(8, 1024, 16, 4096, 1, 2048)
    layout = Layout(pp=4, accumulation=8, schedule=schedule, virtual_stages=virtual)
    cluster = Cluster(H100, 1, inside=IDEAL)
    step = step_time(Job(shape, recipe, layout, cluster, sequence=2048), Assumptions(touches=0))
    each = (step.compute_s + step.pp_s) / 8
    times = PassTimes(each / 3, 2 * each / 3)
    simulated = timeline(schedule, 4, 8, virtual, times=times)
    # dualpipe: the closed form is of the middle stages
    waiting = simulated.idle[1] if schedule == "dualpipe" else simulated.bubble_time
    assert step.bubble_s == pytest.approx(waiting, rel=1e-3)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(8, 10), min_size=2, max_size=5),
    rounds=st.integers(1, 4),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
)
def test_unequal_stages_wait_no_longer_than_the_closed_form(sizes, rounds, schedule):
    """The slowest stage works throughout, and the rest is one micro-batch through the others.

    Exact for gpipe; 1F1B fills a part of that time with work, so that the form is an upper bound.
    """
    shape, stages = replace(SHAPE, layers=sum(sizes), vocab=1000), len(sizes)
    layout = Layout(
        pp=stages, accumulation=rounds * stages, schedule=schedule, stage_layers=tuple(sizes)
    )
    cluster = Cluster(H100, 1, inside=IDEAL)
    job = Job(shape, Recipe(), layout, cluster, sequence=2048)
    busy = [stage_busy_time(job, Assumptions(), stage) for stage in range(stages)]
    passes = [stage.passes_s / layout.accumulation for stage in busy]
    times = PassTimes(tuple(p / 3 for p in passes), tuple(2 * p / 3 for p in passes))
    simulated = timeline(schedule, stages, layout.accumulation, times=times).makespan
    step = step_time(job)
    predicted = step.total_s - step.optimizer_s - step.accumulation_s
    assert predicted >= simulated * (1 - 1e-6)
    faster_s = sum(max(passes) - own for own in passes)  # by how much the others are the faster
    assert predicted - simulated <= faster_s + 1e-6 * simulated
    if schedule == "gpipe":
        assert predicted == pytest.approx(simulated)


@every("layers", [1, 2, 3, 4])
@every("sequence_parallel", [False, True])
def test_layers_that_are_not_recomputed_cost_what_they_cost_without(layers, sequence_parallel):
    """FLOP, seconds of matmuls and messages lie on a line between none and all four of a chunk."""
    shape = TransformerShape(8, 1024, 16, 4096, 5000, 2048, experts=4, top_k=1)
    layout = Layout(
        tp=2, cp=2, pp=2, dp=2, ep=2, accumulation=4, sequence_parallel=sequence_parallel
    )

    def step(recompute, part):
        recipe = Recipe(recompute=recompute, recompute_layers=part)
        job = Job(shape, recipe, layout, FOUR)
        busy = stage_busy_time(job, Assumptions(overlap=dict.fromkeys(("cp", "dp"), 0.0)), 1)
        return [step_time(job).hardware_flop, *vars(busy).values()]

    none, some, everything = step("none", None), step("full", layers), step("full", None)
    expected = [a + (b - a) * layers / 4 for a, b in zip(none, everything, strict=True)]
    assert some == pytest.approx(expected)
    assert some[0] > none[0] and step("full", 99) == everything


STEP = step_time(Job(probes.DENSE, layout=probes.TWO_STAGES, cluster=probes.CLUSTER, sequence=512))
DEAR = replace(probes.SLOW, gpu_hour_usd=3.0)
BUSY = Layout(dp=2, tp=2, pp=2, cp=2, ep=2, zero_stage=1, micro_batch=2, accumulation=4)
REFUSED = [(lambda: step_time(Job(SHAPE, Recipe(), Layout(dp=64), FOUR)), "world 32 is not")]
RECORDS = {
    "StepTime": [
        STEP,
        step_time(
            Job(probes.MIXTURE, probes.FULL, BUSY, DEAR, sequence=512),
            Assumptions(overlap={"dp": 0.5, "cp": 0.5}),
        ),
        step_time(Job(probes.DENSE, layout=Layout(pp=2, stage_layers=(5, 1)), sequence=512)),
    ]
}
