"""Step time: leaves against FLOP counts, the simulated pipeline and the collectives."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.theory.compute.flops import training_flops
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import model
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines.pass_times import PassTimes
from course_lib.theory.pipelines.simulation import timeline
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.stage import exposed, stage_busy_time
from course_lib.theory.step.step_time import step_time

SHAPE = TransformerShape(8, 1024, 16, 4096, 50000, 2048)
MIXTURE = replace(model("mixtral-8x7b"), layers=8, context=2048)
H100 = accelerator("H100-SXM")
FOUR = Cluster(H100, nodes=4)
LAYOUT = Layout(dp=2, tp=4, pp=2, cp=2, sequence_parallel=True, micro_batch=2, accumulation=4)
IDEAL = Link("ideal", 1e17)


def seconds(shape=SHAPE, recipe=None, layout=LAYOUT, cluster=FOUR, sequence=2048, **more):
    recipe = recipe or Recipe()
    return step_time(
        Job(shape, recipe, layout, cluster, sequence=sequence), Assumptions(**more)
    ).total_s


def test_leaves_sum_to_the_total_and_are_all_explained():
    step = step_time(Job(SHAPE, Recipe(), LAYOUT, FOUR))
    assert step.total_s == pytest.approx(sum(step.leaves().values()))
    assert len(step.leaves()) == 9 and all(value >= 0 for value in step.leaves().values())
    for name in step.leaves():
        assert name.removesuffix("_s") in step.explain()
    messages = step.tp_s + step.cp_s + step.ep_s + step.pp_s + step.dp_s
    assert step.communication_s == pytest.approx(messages)


def test_what_people_ask_for_follows_from_the_time():
    step = step_time(Job(SHAPE, Recipe(recompute="full"), LAYOUT, FOUR))
    tokens = 2 * 4 * 2 * 2048
    assert step.tokens == tokens and step.gpus == 32
    assert step.tokens_per_s == pytest.approx(tokens / step.total_s)
    assert step.tokens_per_s_per_gpu == pytest.approx(tokens / step.total_s / 32)
    flops = training_flops(SHAPE, 16, 2048, mask="causal", recompute="full", attention="flash")
    assert step.mfu == pytest.approx(flops.model_flop / step.total_s / 32 / 989.4e12)
    assert step.hfu == pytest.approx(flops.hardware_flop / step.total_s / 32 / 989.4e12)
    assert step.days(1e9) == pytest.approx(1e9 / step.tokens_per_s / 86400)
    assert step.cost_usd(1e9) == pytest.approx(step.days(1e9) * 24 * 32 * 2.0)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["flash", "standard"])
def test_computing_is_all_flops_over_the_rate(recompute, attention):
    """The stages of one pipeline, and all GPUs, share the FLOPs that flops.py counts."""
    recipe = Recipe(recompute=recompute, attention=attention)
    mask = "causal" if attention == "flash" else "full"
    flops = training_flops(
        SHAPE, LAYOUT.global_batch, 2048, mask=mask, recompute=recompute, attention=attention
    )
    job = Job(SHAPE, recipe, LAYOUT, FOUR, sequence=2048)
    each = sum(stage_busy_time(job, Assumptions(), stage).compute_s for stage in range(2))
    rate = 0.8 * FOUR.matmul_flop_per_s
    assert each * 2 * 8 * rate == pytest.approx(flops.hardware_flop)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_both_directions_of_dualpipe_together_compute_as_much(schedule):
    """Each of the two chunks of a DualPipe stage sees half of the micro-batches."""
    layout = Layout(pp=4, accumulation=8, schedule=schedule)
    job = Job(SHAPE, Recipe(), layout, Cluster(H100), sequence=2048)
    each = [stage_busy_time(job, Assumptions(), stage).compute_s for stage in range(4)]
    flops = training_flops(SHAPE, 8, 2048, mask="causal", attention="flash")
    assert sum(each) * 0.8 * FOUR.matmul_flop_per_s == pytest.approx(flops.hardware_flop)
    assert (each[0] == each[3]) == (schedule == "dualpipe")


@pytest.mark.parametrize(("recompute", "passes"), [("none", 3), ("full", 4)])
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
    rate = 0.8 * FOUR.matmul_flop_per_s
    assert times[1] - times[0] == pytest.approx(0.5 * passes * forward / rate)


def test_messages_that_nothing_hides_are_those_of_the_traffic():
    naked = Assumptions(overlap=dict.fromkeys(("tp", "cp", "ep", "dp", "pp"), 0.0))
    layout = replace(LAYOUT, zero_stage=1, ep=2)
    for stage in range(2):
        time = stage_busy_time(Job(MIXTURE, Recipe(), layout, FOUR, sequence=2048), naked, stage)
        traffic = step_traffic(
            Job(MIXTURE, Recipe(), layout, FOUR, sequence=2048), stage, policy=naked.policy
        )
        for axis, expected in traffic.seconds_by_axis.items():
            assert getattr(time, f"{axis}_s") == pytest.approx(expected)
        assert set(traffic.seconds_by_axis) == {"tp", "cp", "ep", "dp", "pp"}


def test_messages_hide_no_longer_than_there_is_computing():
    assert exposed(3.0, 0.5, 10.0) == 1.5
    assert exposed(3.0, 1.0, 1.0) == 2.0
    assert exposed(3.0, 0.0, 1.0) == 3.0
    slow = Cluster(H100, 4, between=Link("slow", 1e9))
    shown = {
        (zero, steps): step_time(
            Job(SHAPE, Recipe(), Layout(dp=32, zero_stage=zero, accumulation=steps), slow)
        ).dp_s
        for zero in (1, 2)
        for steps in (4, 8)
    }
    # Once a step, behind one micro-batch however many there are; or with each of them.
    assert shown[1, 8] == pytest.approx(shown[1, 4]) and shown[1, 4] > 0
    assert shown[2, 8] > 1.5 * shown[2, 4]


@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [("naive", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb1p", 1), ("dualpipe", 1)],
)
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
    predicted = step.total_s - step.optimizer_s
    assert predicted >= simulated * (1 - 1e-6)
    faster_s = sum(max(passes) - own for own in passes)  # by how much the others are the faster
    assert predicted - simulated <= faster_s + 1e-6 * simulated
    if schedule == "gpipe":
        assert predicted == pytest.approx(simulated)


CHANGES = {
    "layer_efficiency": dict(layer_efficiency=0.5),
    "touches": dict(touches=4),
    "mask": dict(mask="full"),
    "overlap tp": dict(overlap={"tp": 0.5}),
    "overlap cp": dict(overlap={"cp": 0.0}),
    "overlap dp": dict(overlap={"dp": 0.0}),
    "overlap pp": dict(overlap={"pp": 1.0}),
    "policy": dict(policy=CommunicationPolicy(no_sync=False)),
    "hidden": dict(shape=replace(SHAPE, hidden=2048)),
    "recipe": dict(recipe=Recipe(recompute="full")),
    "offload": dict(recipe=Recipe(offload="optimizer")),
    "layout": dict(layout=replace(LAYOUT, zero_stage=1)),
    "sequence": dict(sequence=1024),
    "memory": dict(cluster=Cluster(replace(H100, memory_bytes_per_s=1e12), 4)),
    "efficiency": dict(cluster=Cluster(H100, 4, matmul_efficiency=0.5)),
    "inside": dict(cluster=Cluster(H100, 4, inside=Link("slow", 1e11))),
    "between": dict(cluster=Cluster(H100, 4, between=Link("slow", 1e9))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_parameter_changes_the_time(name):
    assert seconds(**CHANGES[name]) != pytest.approx(seconds(), rel=1e-6)


def test_parameters_that_matter_elsewhere():
    offload = dict(recipe=Recipe(offload="optimizer"))
    assert seconds(**offload, host_link=Link("slow", 1e9)) > seconds(**offload)
    spread = dict(shape=MIXTURE, layout=replace(LAYOUT, ep=4))
    assert seconds(**spread, overlap={"ep": 1.0}) < seconds(**spread)
    assert seconds(**spread, recipe=Recipe(imbalance=1.5)) > seconds(**spread)
    cheap = step_time(Job(SHAPE, Recipe(), LAYOUT, replace(FOUR, gpu_hour_usd=1.0)))
    dear = step_time(Job(SHAPE, Recipe(), LAYOUT, FOUR))
    assert dear.cost_usd(1e9) == pytest.approx(2 * cheap.cost_usd(1e9))


@settings(deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    zero=st.integers(0, 3),
    micro_batch=st.integers(1, 3),
    rounds=st.integers(1, 3),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_no_leaf_is_ever_negative_or_not_a_number(tp, pp, cp, zero, micro_batch, rounds, recompute):
    layout = Layout(
        dp=32 // (tp * pp * cp),
        tp=tp,
        pp=pp,
        cp=cp,
        zero_stage=zero,
        sequence_parallel=tp > 1,
        micro_batch=micro_batch,
        accumulation=rounds * pp,
    )
    step = step_time(Job(SHAPE, Recipe(recompute=recompute), layout, FOUR))
    assert all(value >= 0 and math.isfinite(value) for value in step.leaves().values())
    assert 0 < step.mfu <= step.hfu < FOUR.accelerator.matmul_efficiency


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (dict(layer_efficiency=0), "layer_efficiency must be above 0, got 0"),
        (dict(layer_efficiency=1.5), "layer_efficiency must be at most"),
        (dict(touches=-1), "touches must be at least 0, got -1"),
        (dict(touches=float("nan")), "touches must be finite"),
        (dict(mask="casual"), "did you mean 'causal'"),
        (dict(overlap={"td": 0.5}), "overlap axis 'td' is not one of"),
        (dict(overlap={"tp": 2}), r"overlap\['tp'\] must be at most"),
    ],
)
def test_bad_assumptions_get_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Assumptions(**wrong)


def test_layouts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="heads 16 is not divisible by tp 3"):
        step_time(Job(SHAPE, Recipe(), Layout(tp=3), FOUR))
    with pytest.raises(ValueError, match="world 32 is not"):
        step_time(Job(SHAPE, Recipe(), Layout(dp=64), FOUR))
    with pytest.raises(ValueError, match="sequence"):
        step_time(Job(SHAPE, Recipe(), cluster=FOUR, sequence=4096))
    with pytest.raises(ValueError, match="sequence must be at least 1, got 0"):
        step_time(Job(SHAPE, Recipe(), cluster=FOUR, sequence=0))
    with pytest.raises(ValueError, match="tokens must be at least 0"):
        step_time(Job(SHAPE, Recipe(), cluster=FOUR)).days(-1)
