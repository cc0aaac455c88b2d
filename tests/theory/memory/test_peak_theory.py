"""Memory of one GPU by leaf; tests/scratch and tests/measure compare with real tensors."""

from dataclasses import replace

import probes
import pytest
from every import every
from probes import JOB, Probe, by_name

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import GIB, format_bytes
from course_lib.theory.memory import activations
from course_lib.theory.memory.peak import (
    COMMUNICATOR_BYTES,
    OVERHEAD_BYTES,
    communicators,
    explain_memory,
    gpu_memory,
    gradients_come_late,
    largest_layer_bytes,
    layer_temporary_bytes,
    memory_moments,
    metered_bytes,
    training_memory,
    worst_stage,
)
from course_lib.theory.memory.states import model_states

LATE = Recipe(gradient_life="backward", loss="eager", update="foreach")


def test_gradients_that_come_late_are_not_there_with_the_most_activations():
    """torchtune's Llama 3.2 3B, 24.9 GiB with checkpointing: states, and not a moment's more."""
    shape = MODELS["llama2-7b"]
    moments = memory_moments(Job(shape, LATE, sequence=4096), overhead_bytes=0)
    always = memory_moments(
        Job(shape, replace(LATE, gradient_life="always"), sequence=4096),
        overhead_bytes=0,
    )
    gradients = 2 * shape.parameters().total
    saved = always["loss"].total_bytes - moments["loss"].total_bytes
    assert saved == gradients
    assert moments["backward ends"] == always["backward ends"]
    # Several micro-batches leave their gradients for the next one.
    twice = Job(shape, LATE, Layout(accumulation=2), sequence=4096)
    assert memory_moments(twice)["loss"].gradients_bytes == gradients


def test_the_peak_is_the_largest_moment():
    """A small batch has it in the update, a large one in the backward pass."""
    for micro_batch, name in ((1, "update"), (16, "loss")):
        job = Job(MODELS["llama2-7b"], LATE, Layout(micro_batch=micro_batch))
        moments = memory_moments(job)
        assert gpu_memory(job) == moments[name]
        assert moments[name].total_bytes == max(one.total_bytes for one in moments.values())


SEVENTY, MIXTRAL = MODELS["llama3-70b"], MODELS["mixtral-8x7b"]
SPREAD = Layout(dp=8, tp=8, pp=4, zero_stage=1, sequence_parallel=True, accumulation=16)


@every("name", ["gpt2-124m", "llama2-7b", "mixtral-8x7b", "deepseek-v3"])
@every("micro_batch", [1, 3])
def test_one_gpu_alone_is_the_trivial_layout(name, micro_batch):
    shape, recipe = MODELS[name], Recipe(attention="standard", dropout=True)
    alone = training_memory(shape, recipe, micro_batch, 1024)
    job = Job(shape, recipe, Layout(micro_batch=micro_batch), sequence=1024)
    states = model_states(shape.parameters().total, recipe)
    assert alone.model_states_bytes == states.model_states_bytes
    layers = [activations.layer_activation_bytes(job, layer) for layer in range(shape.layers)]
    assert alone.activations_bytes == sum(layers)
    assert alone.head_bytes == activations.head_activation_bytes(job)
    assert alone.inputs_bytes == 2 * 8 * micro_batch * 1024
    assert alone.temporary_bytes == 2 * micro_batch * 1024 * shape.vocab


def at_the_loss(layout):
    """The bill of each of four stages at the moment of the loss."""
    job = Job(SEVENTY, Recipe(), layout, sequence=8192)
    return [memory_moments(job, stage)["loss"] for stage in range(4)]


def test_first_and_last_stage_have_what_is_theirs():
    bills = at_the_loss(SPREAD)
    tokens, parts = 8192, 8
    assert [bill.inputs_bytes for bill in bills] == [4 * 8 * tokens, 0, 0, 8 * tokens]
    assert [bill.head_bytes > 0 for bill in bills] == [False, False, False, True]
    logits = 2 * tokens * SEVENTY.vocab / parts
    assert [bill.temporary_bytes for bill in bills] == [0, 0, 0, logits]
    assert bills[0].parameters_bytes > bills[1].parameters_bytes == bills[2].parameters_bytes
    activations = [bill.activations_bytes for bill in bills]
    assert activations == [(4 - stage) * activations[3] for stage in range(4)]


def test_the_last_stage_keeps_the_loss_of_every_micro_batch_in_flight():
    one, all_of_them = (
        gpu_memory(Job(SEVENTY, Recipe(), replace(SPREAD, schedule=schedule), sequence=8192), 3)
        for schedule in ("1f1b", "gpipe")
    )
    assert all_of_them.head_bytes == 16 * one.head_bytes
    assert all_of_them.inputs_bytes == 16 * one.inputs_bytes


def test_the_head_is_on_the_last_chunk_of_an_interleaved_pipeline():
    layout = Layout(pp=4, accumulation=8, schedule="interleaved", virtual_stages=2)
    bills = at_the_loss(layout)
    assert [bill.head_bytes > 0 for bill in bills] == [False, False, False, True]
    assert [bill.temporary_bytes for bill in bills] == [0, 0, 0, 2 * 8192 * SEVENTY.vocab]


def test_full_recomputation_needs_one_layer_for_a_moment():
    job = Job(SEVENTY, Recipe(recompute="full"), SPREAD, sequence=8192)
    middle = gpu_memory(job, 1)
    layer = activations.layer_activation_bytes(Job(SEVENTY, Recipe(), SPREAD, sequence=8192))
    stored = 2 * 8192 * SEVENTY.hidden // 8
    gradients = activations.layer_gradients_bytes(job)
    assert middle.temporary_bytes == layer - stored + gradients
    # Of the residual stream, and two of the MLP's width.
    assert gradients == stored + 2 * 2 * 8192 * SEVENTY.ffn // 8
    assert middle.activations_bytes == 3 * 20 * stored


@every(("dp", "steps", "fullest"), [(128, 16, 88.9), (64, 32, 96.2)])
def test_a_chunk_may_have_no_layer(dp, steps, fullest):
    """Llama 3 405B, 128 chunks of which the first and the last have none: stage 1 is the fullest.

    Computed by hand: 128 or 141 chunk passes of 532.7 MB, weights, fp32 gradients, states, 1 GiB.
    """
    layout = Layout(
        tp=8,
        pp=16,
        dp=dp,
        accumulation=steps,
        zero_stage=1,
        sequence_parallel=True,
        schedule="interleaved",
        virtual_stages=8,
        stage_layers=(0, *[1] * 126, 0),
    )
    recipe = Recipe(gradients="fp32", fused_swiglu=True)
    job = Job(MODELS["llama3.1-405b"], recipe, layout, sequence=8192)
    stage, bill = worst_stage(job)
    assert stage == 1
    assert bill.total_bytes / 1e9 == pytest.approx(fullest, abs=0.05)
    assert gpu_memory(job, 0).total_bytes < bill.total_bytes


def test_expert_ranks_keep_their_experts_alone():
    layouts = [Layout(dp=8, ep=ep, zero_stage=1) for ep in (1, 8)]
    alone, spread = (
        gpu_memory(Job(MIXTRAL, Recipe(), layout, sequence=4096)) for layout in layouts
    )
    experts = MIXTRAL.parameters().experts
    assert alone.parameters_bytes - spread.parameters_bytes == 2 * experts * 7 / 8
    # Optimizer states: experts over ep·1 = 8 ranks, as over dp = 8 before.
    assert alone.optimizer_state_bytes == spread.optimizer_state_bytes
    assert alone.activations_bytes == spread.activations_bytes


HALF_DENSE = replace(JOB, shape=replace(JOB.shape, dense_layers=4), recipe=Recipe())


# --- meter ---


BILL = gpu_memory(JOB)


@every(
    ("layout", "count"),
    [
        (ALONE, 0),
        (Layout(dp=4), 2),
        (probes.SPREAD, 5),
        (Layout(dp=4, tp=2, ep=2, zero_stage=1), 4),
    ],
)
def test_all_ranks_and_each_axis_have_a_communicator(layout, count):
    assert communicators(layout) == count


def test_each_meter_shows_more_than_the_one_before():
    tensors = BILL.total_bytes - BILL.overhead_bytes
    assert metered_bytes(BILL, "allocated", probes.SPREAD, buffers_bytes=GIB) == tensors
    reserved = metered_bytes(BILL, "reserved", probes.SPREAD, buffers_bytes=GIB)
    assert reserved == pytest.approx(1.15 * tensors + GIB)
    shown = metered_bytes(BILL, "nvidia-smi", probes.SPREAD, buffers_bytes=GIB)
    assert shown - reserved == pytest.approx(OVERHEAD_BYTES + 5 * COMMUNICATOR_BYTES)


# --- report ---


MIXTURE = Job(
    MIXTRAL, Recipe(), Layout(dp=8, tp=4, pp=2, ep=8, zero_stage=1, accumulation=4), sequence=4096
)
TORCH = Layout(
    dp=2,
    tp=2,
    zero_stage=3,
    accumulation=2,
    sequence_parallel=True,
    reshard=False,
    reduce="update",
    keep_gathered=True,
    keep_outputs=True,
)
GROUPS = Layout(
    dp=2,
    pp=2,
    zero_stage=2,
    accumulation=4,
    schedule="interleaved",
    virtual_stages=2,
    reduce="group",
)
PARTS = [
    getattr(gpu_memory(MIXTURE), f"{it}_bytes") for it in ("parameters", "activations", "total")
]


@every(
    ("job", "lines"),
    [
        (
            MIXTURE,
            [
                "adamw: weights 2 (bf16) + gradients 2 (bf16) + fp32 master copy 4 + states 8 = 16",
                "stage 0 of pp 2, 1/4 by tp",
                "1/8 of the experts by ep",
                "ZeRO-1 cuts optimizer over dp·cp = 8, of experts over dp·cp/ep = 1",
                "1f1b, recompute none: 2 micro-batches × 16 layers with experts ×",
                *(format_bytes(size, "GiB") for size in PARTS),
            ],
        ),
        (
            Job(MODELS["gpt2-124m"]),
            ["assumed: loss in-place, gradients stay, update fused; the peak is at the"],
        ),
        (
            Job(MODELS["gpt2-124m"], LATE, TORCH),
            [
                "assumed: loss eager, gradients live from the backward pass to the update, update "
                "foreach, weights stay gathered, whole gradients add up, gathered inputs are kept, "
                "sent outputs are kept; the peak is at the moment 'loss'"
            ],
        ),
        (
            Job(MODELS["gpt2-124m"], Recipe(recompute="full", recompute_layers=2), GROUPS),
            [
                "whole gradients of one chunk add up",
                # 12 layers in 4 chunks of 3: two of each are recomputed. Of 5 passes in flight 4
                # are of the first chunk at the worst moment: it has the token numbers.
                "recompute full: 4 micro-batches × 2 layers",
                "recompute none: 4 micro-batches × 1 layers",
                "recompute none: 1 micro-batches × 1 layers",
            ],
        ),
    ],
)
def test_the_derivation_has_every_part_and_every_assumption(job, lines):
    text = explain_memory(job, unit="GiB")
    assert all(line in text for line in lines), text


SMALL = MODELS["gpt2-124m"]
REFUSED = [(lambda: training_memory(SMALL, Recipe(), 1, 2048), "longer than the 1024 positions")]
PROBES = by_name(
    Probe(largest_layer_bytes, {"job": HALF_DENSE, "chunks": (0,)}, silent=("cluster",)),
    Probe(layer_temporary_bytes, {"job": HALF_DENSE, "chunks": (0,)}, silent=("cluster",)),
    Probe(
        gradients_come_late,
        {"job": replace(JOB, recipe=LATE, layout=Layout(dp=4))},
        {},
        silent=("shape", "micro_batch", "cluster", "sequence"),
    ),
    Probe(
        metered_bytes,
        {"bill": BILL, "meter": "nvidia-smi", "layout": probes.SPREAD},
        {"bill": gpu_memory(JOB, 1), "meter": "reserved"},
    ),
)
