"""Memory moment by moment: the four moments of `memory_moments` among all others."""

from dataclasses import replace

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import JOB, Probe

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import OPTIMIZER_STATE_BYTES, RECOMPUTE, Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import gpu_memory, memory_moments, training_memory
from course_lib.theory.memory.step_timeline import step_timeline

SMALL = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=128, context=64)
FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
JOBS = st.builds(
    Job,
    st.sampled_from([SMALL, MODELS["gpt2-124m"], MODELS["llama2-7b"], MODELS["llama2-70b"]]),
    st.builds(
        Recipe,
        optimizer=st.sampled_from(list(OPTIMIZER_STATE_BYTES)),
        gradient_life=st.sampled_from(["always", "backward"]),
        update=st.sampled_from(["fused", "foreach"]),
        recompute=st.sampled_from(RECOMPUTE),
        attention=st.sampled_from(["flash", "standard"]),
        loss=st.sampled_from(["eager", "in-place", "fused"]),
        dropout=st.booleans(),
        gathered_units=st.integers(1, 3),
    ),
    st.builds(
        lambda sharding, **sizes: Layout(zero_stage=sharding[0], reshard=sharding[1], **sizes),
        st.sampled_from([(0, True), (1, True), (2, True), (3, True), (3, False)]),
        dp=st.sampled_from([1, 4]),
        tp=st.sampled_from([1, 2]),
        micro_batch=st.sampled_from([1, 8, 64]),
        accumulation=st.integers(1, 3),
    ),
    sequence=st.sampled_from([16, 64]),
)


@given(JOBS)
def test_the_peak_is_that_of_gpu_memory(job):
    most = gpu_memory(job)
    run = step_timeline(job)
    if job.layout.zero_stage < 2:
        assert run.peak_bytes == most.total_bytes
        assert run.peak.bill.consumers == most.consumers
    else:  # all that is ever whole, at every moment
        whole = most.gathered_parameters_bytes + most.gathered_gradients_bytes
        assert 0 <= most.total_bytes - run.peak_bytes <= whole


@given(JOBS)
def test_the_four_moments_are_among_them(job):
    run, four = step_timeline(job), memory_moments(job)
    found = {(step.phase, step.what): step.bill for step in run.steps}
    names = {
        "loss": ("backward", "loss"),
        "backward begins": ("backward", f"layer {job.shape.layers}"),
        "backward ends": ("backward", "layer 1, end"),
        "update": ("update", "update"),
    }
    for moment, where in names.items():
        expected = four[moment]
        if job.layout.zero_stage >= 2:
            whole = ("gathered_parameters_bytes", "gathered_gradients_bytes")
            ours = {name: getattr(found[where], name) for name in whole}
            assert all(size <= getattr(expected, name) for name, size in ours.items())
            expected = replace(expected, **ours)
        assert found[where] == expected


def test_one_step_by_hand():
    run = step_timeline(Job(SMALL, FP32, Layout(micro_batch=8)), overhead_bytes=0)
    assert run.moments == (
        *("embedding", "layer 1", "layer 2", "head and loss"),
        *("loss", "layer 2", "layer 1", "layer 1, end"),
        *("update", "after it"),
    )
    layer, tokens = 64 * 8 * 64 * 64, 8 * 64  # 64 bytes × s·b·h
    head = tokens * (2 * 64 * 4 + 4 * 128)
    kept = run.sizes["intermediate results"]
    assert kept[:5] == (0, layer, 2 * layer, 2 * layer + head, 2 * layer + head)
    assert kept[5:] == (2 * layer, layer, layer, 0, 0)
    own = SMALL.layer_parameters(0).total * 4
    gradients = run.sizes["gradients"]
    everything = 4 * SMALL.parameters().total
    assert gradients == (0, 0, 0, 0, 0, 0, own, everything, everything, 0)
    assert (run.peak.phase, run.peak.what) == ("backward", "loss")
    assert run.peak_bytes == training_memory(SMALL, FP32, 8, overhead_bytes=0).total_bytes


def test_states_come_with_the_first_update():
    job = Job(SMALL, FP32, Layout(micro_batch=8))
    first, later = step_timeline(job, first_update=True), step_timeline(job)
    states = 8 * SMALL.parameters().total
    assert first.sizes["optimizer"] == (0,) * 8 + (states, states)
    assert set(later.sizes["optimizer"]) == {states}


def test_gradients_stay_over_the_second_micro_batch():
    job = Job(SMALL, FP32, Layout(micro_batch=8, accumulation=2))
    gradients = step_timeline(job).sizes["gradients"]
    assert gradients[:5] == (0,) * 5
    assert set(gradients[7:-1]) == {4 * SMALL.parameters().total} and gradients[-1] == 0


@every(("reshard", "whole"), [(True, [0, 2, 2, 2, 1, 0]), (False, [0, 1, 2, 3, 4, 4])])
def test_fsdp_gathers_and_frees(reshard, whole):
    shape = replace(SMALL, layers=4)
    job = Job(shape, FP32, Layout(dp=2, zero_stage=3, reshard=reshard))
    steps = step_timeline(job).steps
    sizes = [step.bill.gathered_parameters_bytes for step in steps[:6]]
    layer = 4 * shape.layer_parameters(0).total
    root = 4 * (shape.parameters().total - 4 * shape.layer_parameters(0).total)
    assert sizes == [root + layer * count for count in whole]
    assert steps[-1].bill.gathered_parameters_bytes == 0


def test_a_pipeline_is_refused():
    with pytest.raises(ValueError, match=r"pp 2 has passes .*: take pp=1, or replay"):
        step_timeline(Job(MODELS["llama2-7b"], layout=Layout(pp=2)))


ONE_STAGE = replace(JOB, layout=replace(JOB.layout, pp=1))
RUNS = [
    step_timeline(ONE_STAGE),
    step_timeline(Job(SMALL, FP32, Layout(micro_batch=8)), first_update=True),
]
PROBES = {
    "step_timeline": Probe(step_timeline, {"job": ONE_STAGE}, silent=("cluster",), refuses=True)
}
RECORDS = {"StepMoment": [step for run in RUNS for step in run.steps], "StepTimeline": RUNS}
