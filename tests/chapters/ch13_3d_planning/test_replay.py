"""The replay of a schedule: Llama 3's pipeline by hand, and against the closed forms."""

import dataclasses
from itertools import pairwise

import pytest
from every import every
from hypothesis import assume, given
from hypothesis import strategies as st
from probes import JOB

from course_lib.chapters.ch13_3d_planning.replay import memory_timeline
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.published import LLAMA3_405B
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.schedule_rules import SCHEDULES
from course_lib.theory.memory.peak import gpu_memory, memory_moments

SEVENTY, MIXTRAL = MODELS["llama2-70b"], MODELS["mixtral-8x7b"]
LATE = Recipe(gradients="fp32", fused_swiglu=True, gradient_life="backward")
META = dataclasses.replace(LLAMA3_405B.layout, zero_stage=2, reduce="group")
ON_8K = {"dp": 64, "accumulation": 32}


def peak_gb(layout, recipe=LATE, stage=1):
    job = Job(MODELS["llama3.1-405b"], recipe, layout, sequence=8192)
    return memory_timeline(job, stage).peak_bytes / 1e9


@every(
    ("layout", "life", "stage", "expected"),
    [
        # By hand: 128 (stage 0: 112) chunk passes of 532.7 MB, weights 6.4 (6.1), states over the
        # dp ranks 0.3, 1 GiB of overhead; and fp32 gradients of all chunks, 12.8 (12.2) ...
        ({"zero_stage": 1, "reduce": None}, "always", 1, 88.9),
        ({"zero_stage": 1, "reduce": None}, "always", 0, 79.6),
        # ... or of one chunk, 1.6 GB, and their shards.
        ({}, "always", 1, 77.9),
        ({}, "always", 0, 69.1),
        # The same when they come with the backward pass, but for the other chunks' shards, 0.1 GB.
        ({}, "backward", 1, 77.8),
        ({"reduce": "update"}, "backward", 1, 77.8),
        # 32 micro-batches on 8,192 GPUs: 141 chunk passes, states over 64 ranks.
        (ON_8K | {"zero_stage": 1, "reduce": None}, "always", 1, 96.2),
        (ON_8K, "backward", 1, 85.2),
        (ON_8K | {"reduce": "update"}, "backward", 1, 96.4),
        # All forward passes first: 8 · 32 chunk passes.
        (ON_8K | {"group": 32}, "backward", 1, 144.7),
    ],
)
def test_llama_3_by_hand(layout, life, stage, expected):
    recipe = dataclasses.replace(LATE, gradient_life=life)
    found = peak_gb(dataclasses.replace(META, **layout), recipe, stage)
    assert found == pytest.approx(expected, abs=0.06)


def test_gradients_come_when_most_activations_go():
    """One group of all micro-batches: forward passes, then the chunks' gradients one by one."""
    job = Job(MODELS["llama3.1-405b"], LATE, META, sequence=8192)
    run = memory_timeline(job, 1)
    assert [it.kind for it in run.passes] == ["F"] * 128 + ["B"] * 128
    assert run.fullest == 128 and run.passes[127].gradients_bytes == 0
    chunk = job.shape.layer_parameters(0).total / 8
    shard = 4 * chunk / 128
    for number in range(8):
        first = run.passes[128 + 16 * number]
        assert first.gradients_bytes == pytest.approx((number + 1) * shard + 4 * chunk, rel=1e-3)
        assert first.chunk == 7 - number
        last = run.passes[128 + 16 * number + 15]
        assert last.gradients_bytes == pytest.approx((number + 1) * shard, rel=1e-3)
    assert run.passes[-1].activations_bytes == 0


def test_one_stage_with_few_passes_by_hand():
    """Two stages, three micro-batches: F F B F B B, and gradients from the first B on."""
    recipe, layout = Recipe(gradient_life="backward"), Layout(pp=2, accumulation=3)
    run = memory_timeline(Job(SEVENTY, recipe, layout, sequence=512))
    kinds = [(it.kind, it.micro_batch) for it in run.passes]
    assert kinds == [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("B", 2)]
    one = run.passes[0].activations_bytes
    assert [it.activations_bytes for it in run.passes] == [one * n for n in (1, 2, 1, 2, 1, 0)]
    all_gradients = run.passes[-1].gradients_bytes
    assert [it.gradients_bytes // all_gradients for it in run.passes] == [0, 0, 1, 1, 1, 1]
    assert run.fullest == 4  # the second B: both are there
    assert run.peak_bytes == gpu_memory(Job(SEVENTY, recipe, layout, sequence=512)).total_bytes


def test_the_update_may_need_most():
    recipe = Recipe(update="foreach", gradient_life="backward", recompute="full")
    run = memory_timeline(Job(SEVENTY, recipe, Layout(pp=2, accumulation=2), sequence=64))
    assert run.peak_bytes == run.update_bytes > run.passes[run.fullest].most_bytes


@st.composite
def pipelines(draw):
    schedule = draw(st.sampled_from(SCHEDULES))
    pp = draw(st.sampled_from([2, 4] if schedule == "dualpipe" else [1, 2, 4]))
    count, group = pp * draw(st.integers(1, 3)), None
    if schedule in ("zbv", "dualpipe"):
        count *= 2
    virtual_stages = draw(st.integers(2, 3)) if schedule == "interleaved" else 1
    ways = [None, "micro-batch", "update"]
    if schedule == "interleaved":
        group, ways = draw(st.sampled_from([None, pp + 1, 2 * pp])), [*ways, "group"]
        count = (group + pp) * draw(st.integers(1, 2)) if group else count
        assume(group is None or count % group == 0 or count % group >= pp)
    dp = draw(st.sampled_from([1, 2]))
    return Layout(
        dp=dp,
        pp=pp,
        zero_stage=draw(st.integers(0, 3)),
        accumulation=count,
        schedule=schedule,
        virtual_stages=virtual_stages,
        group=group,
        keep_outputs=draw(st.booleans()),
        reduce=draw(st.sampled_from(ways)),
    )


RECIPES = st.builds(
    Recipe,
    gradients=st.sampled_from(["bf16", "fp32"]),
    gradient_life=st.sampled_from(["always", "backward"]),
    attention=st.sampled_from(["flash", "standard"]),
    recompute=st.sampled_from(["selective", "operators", "full"]),
    recompute_layers=st.sampled_from([None, 1, 2]),
    loss=st.sampled_from(["eager", "fused"]),
) | st.builds(Recipe, gradient_life=st.sampled_from(["always", "backward"]))


@given(
    layout=pipelines(),
    recipe=RECIPES,
    shape=st.sampled_from([SEVENTY, MIXTRAL, MODELS["deepseek-v3"]]),
    uneven=st.booleans(),
    data=st.data(),
)
def test_the_closed_forms_are_never_less(layout, recipe, shape, uneven, data):
    """And equal to the replay where all gradients are there from the beginning."""
    if uneven:
        cuts = sorted(data.draw(st.integers(0, shape.layers)) for _ in range(layout.chunks - 1))
        ends = [0, *cuts, shape.layers]
        layers = tuple(stop - start for start, stop in pairwise(ends))
        layout = dataclasses.replace(layout, stage_layers=layers)
    if shape.experts and data.draw(st.booleans()):  # no other rank has its experts
        layout = dataclasses.replace(layout, ep=layout.dp)
    stage = data.draw(st.integers(0, layout.pp - 1))
    job = Job(shape, recipe, layout, sequence=512)
    most, replayed = gpu_memory(job, stage).total_bytes, memory_timeline(job, stage).peak_bytes
    assert replayed <= most
    if recipe.gradient_life == "always" and not uneven:
        assert replayed == most


def test_one_way_of_dualpipe_holds_logits_while_the_other_goes_backward():
    """DeepSeek-V3's first stage has the head as well, of the other direction: 2.2 GB of logits."""
    layout = Layout(dp=32, ep=32, pp=16, accumulation=32, schedule="dualpipe", zero_stage=1)
    job = Job(MODELS["deepseek-v3"], Recipe(recompute="full"), layout, sequence=4096)
    begins = memory_moments(job)["backward begins"]
    assert begins.head_bytes == pytest.approx(4096 * (129_280 + 7168) * 4, rel=0.01)
    assert begins == gpu_memory(job)
    assert begins.total_bytes == memory_timeline(job).peak_bytes


@given(layout=pipelines(), late=st.booleans())
def test_after_the_last_pass_only_states_and_gradients_are_left(layout, late):
    life = "backward" if late else "always"
    job = Job(SEVENTY, Recipe(gradient_life=life), layout, sequence=512)
    run = memory_timeline(job, layout.pp - 1)
    assert run.passes[-1].activations_bytes == 0
    update = memory_moments(job, layout.pp - 1)["update"]
    left = run.always.gradients_bytes + run.passes[-1].gradients_bytes
    # Each chunk rounds its shard up.
    assert 0 <= left - update.gradients_bytes < 2 * layout.virtual_stages + 4


def test_explain_names_the_fullest_pass():
    text = memory_timeline(Job(MODELS["llama3.1-405b"], LATE, META, sequence=8192), 1).explain()
    assert text.endswith("fullest is pass 129 of 256: B of micro-batch 0, chunk 7 of this stage")
    assert "peak                      77.79 GB" in text


INTERLEAVED = Layout(pp=2, accumulation=4, schedule="interleaved", virtual_stages=2)
RUNS = [memory_timeline(JOB), memory_timeline(Job(SEVENTY, LATE, INTERLEAVED, sequence=512), 1)]
RECORDS = {
    "PassMemory": [it for run in RUNS for it in run.passes],
    "MemoryTimeline": RUNS,
}
