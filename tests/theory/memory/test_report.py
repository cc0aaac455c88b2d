"""The derivation names the convention, the shares and every leaf."""

from probes import JOB, Probe, by_name

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.memory.report import explain_memory

LAYOUT = Layout(dp=8, tp=4, pp=2, ep=8, zero_stage=1, accumulation=4)


def test_every_part_is_in_the_derivation():
    shape = MODELS["mixtral-8x7b"]
    text = explain_memory(Job(shape, Recipe(), LAYOUT, sequence=4096), unit="GiB")
    bill = gpu_memory(Job(shape, Recipe(), LAYOUT, sequence=4096))
    assert (
        "adamw: weights 2 (bf16) + gradients 2 (bf16) + fp32 master copy 4 + states 8 = 16" in text
    )
    assert "stage 0 of pp 2, 1/4 by tp" in text
    assert "1/8 of the experts by ep" in text
    assert "ZeRO-1 cuts optimizer over dp·cp = 8, of experts over dp·cp/ep = 1" in text
    assert "1f1b, recompute none: 2 micro-batches × 16 layers with experts ×" in text
    for size in (bill.parameters_bytes, bill.activations_bytes, bill.total_bytes):
        assert format_bytes(size, "GiB") in text


def test_leading_dense_layers_have_a_line_of_their_own():
    text = explain_memory(Job(MODELS["deepseek-v3"], Recipe(), sequence=4096))
    assert "1 micro-batches × 3 layers ×" in text
    assert "1 micro-batches × 58 layers with experts ×" in text


def test_a_gradient_buffer_is_named_in_the_convention():
    text = explain_memory(Job(MODELS["gpt2-124m"], Recipe(gradient_buffer=True)))
    assert "fp32 gradient buffer 4" in text
    assert "= 20 B per parameter" in text


def test_every_assumption_is_named_with_the_moment_of_the_peak():
    plain = explain_memory(Job(MODELS["gpt2-124m"]))
    assert "assumed: loss in-place, gradients stay, update fused; the peak is at the" in plain
    recipe = Recipe(loss="eager", gradient_life="backward", update="foreach")
    layout = Layout(
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
    told = explain_memory(Job(MODELS["gpt2-124m"], recipe, layout))
    assert (
        "assumed: loss eager, gradients live from the backward pass to the update, update foreach, "
        "weights stay gathered, whole gradients add up, gathered inputs are kept, sent outputs are "
        "kept; the peak is at the moment 'loss'"
    ) in told


def test_gradients_that_are_reduced_after_each_group_and_layers_that_keep_all_are_named():
    layout = Layout(
        dp=2,
        pp=2,
        zero_stage=2,
        accumulation=4,
        schedule="interleaved",
        virtual_stages=2,
        reduce="group",
    )
    recipe = Recipe(recompute="full", recompute_layers=2)
    told = explain_memory(Job(MODELS["gpt2-124m"], recipe, layout))
    assert "whole gradients of one chunk add up" in told
    # 12 layers in 4 chunks of 3: two of each are recomputed.
    assert told.count("recompute full: ") == told.count("recompute none: ") == 2
    # Of 5 passes in flight 4 are of the first chunk at the worst moment: it has the token numbers.
    assert "recompute full: 4 micro-batches × 2 layers" in told


REFUSED = [
    (lambda: explain_memory(Job(MODELS["gpt2-124m"]), unit="Gb"), "did you mean 'GB'"),
]
PROBES = by_name(
    Probe(explain_memory, {"job": JOB}, {"stage": 1, "unit": "GiB"}, silent=("cluster",)),
)
