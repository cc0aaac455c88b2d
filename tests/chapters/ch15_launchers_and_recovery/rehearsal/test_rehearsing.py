"""The tensors of a rank: those of the model that is rehearsed, and as many as the theory counts."""

import random
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.chapters.ch15_launchers_and_recovery.rehearsal import compared, rehearse
from course_lib.chapters.ch15_launchers_and_recovery.rehearsal.program import (
    Observed,
    check,
    fake_world,
    one_update,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.trace import Total

LLAMA = TransformerShape(
    layers=1, hidden=16, heads=8, ffn=20, vocab=21, context=12, kv_heads=4, mlp="swiglu",
    norm="rmsnorm", biases=False, learned_positions=False, tied_embeddings=False,
)  # fmt: skip
GPT = TransformerShape(layers=2, hidden=16, heads=4, ffn=64, vocab=21, context=12)
# fp32 shards, gathered and computed in bf16, gradients reduced in fp32.
FSDP = Recipe(parameters="fp32", gradients="fp32", compute="bf16", master_copy=False)


def job(shape=LLAMA, recipe=FSDP, **layout):
    return Job(shape, recipe, Layout(zero_stage=3, **layout), sequence=8)


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (job(replace(LLAMA, experts=4, top_k=2)), "experts 4 .* a model with experts=0"),
        (job(replace(LLAMA, qk_norm="head")), r"qk_norm 'head' .* qk_norm='none'"),
        (job(replace(LLAMA, layer_norms=4)), r"layer_norms 4 .* layer_norms=2"),
        (job(replace(LLAMA, layers=2), pp=2), r"pp 2 .* a layout with pp=1"),
        (job(cp=2), r"cp 2 .* cp=1"),
        (Job(LLAMA, FSDP, Layout(dp=2), sequence=8), r"zero_stage 0 .* zero_stage=3"),
        (job(replace(LLAMA, ffn=24), tp=8), "kv_heads 4 is not divisible by tp 8"),
        (
            job(replace(LLAMA, vocab=5), tp=4),
            "vocab 5 leaves the last of tp 4 ranks",
        ),
        (job(recipe=replace(FSDP, parameters="bf16", master_copy=True)), "master_copy True"),
        (job(recipe=replace(FSDP, recompute="full")), "recompute 'full'"),
        (job(recipe=replace(FSDP, optimizer="adamw-8bit")), "'adamw-8bit' is not in torch"),
        (job(recipe=replace(FSDP, optimizer="adamw-bf16")), r"moments in bf16, .* weights, fp32"),
    ],
)
def test_it_is_refused_with_its_remedy(refused, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(refused)


pytestmark = pytest.mark.torch_internals


# --- a second source: real ranks --------------------------------------------------------------


JOBS = [
    job(GPT, dp=2, tp=2, sequence_parallel=True, accumulation=2),
    job(dp=4, shard_group=2),
]


def on_real_ranks() -> list[Observed]:
    torch.set_num_threads(1)
    launch.init()
    return [one_update(each, nullcontext()) for each in JOBS]


def test_a_rehearsed_rank_does_what_a_real_one_does():
    for number, real in enumerate(launch.run(on_real_ranks, ranks=4, timeout_s=280)):
        for each, observed in zip(JOBS, real, strict=True):
            with fake_world(number, 4) as tensors:
                assert one_update(each, tensors) == observed


# --- the theory -------------------------------------------------------------------------------


def random_job(dice):
    """A job of a small model, and one of its ranks."""
    shards, copies = dice.choice([1, 2, 3, 4, 5, 7]), dice.choice([1, 1, 1, 2, 3])
    tp = dice.choice([1, 1, 2, 4])
    layout = Layout(
        dp=shards * copies,
        tp=tp,
        zero_stage=3,
        shard_group=shards,
        reshard=dice.random() < 0.7,
        accumulation=dice.choice([1, 1, 2]),
        reduce=dice.choice([None, "update"]),
        sequence_parallel=tp > 1 and dice.random() < 0.5,
        micro_batch=dice.choice([1, 2]),
        keep_gathered=True,
    )
    return Job(random_shape(dice), random_recipe(dice), layout, sequence=8), dice.randrange(
        layout.world
    )


def random_shape(dice):
    heads = dice.choice([4, 8])
    return TransformerShape(
        layers=dice.choice([1, 1, 2]),
        hidden=heads * dice.choice([2, 4, 6]),
        heads=heads,
        ffn=dice.choice([12, 20, 32]),
        vocab=dice.choice([16, 19, 21]),
        context=12,
        kv_heads=dice.choice([4, heads]),
        mlp=dice.choice(["gelu", "swiglu"]),
        norm=dice.choice(["layernorm", "rmsnorm", "plain"]),
        biases=dice.random() < 0.5,
        learned_positions=dice.random() < 0.5,
        tied_embeddings=dice.random() < 0.5,
        attention_biases=dice.choice([None, "none", "qkv", "all"]),
    )


def random_recipe(dice):
    more = {
        "gradients": dice.choice(["fp32", "bf16"]),
        "compute": dice.choice([None, "bf16", "fp32"]),
    }
    if dice.random() < 0.3:
        names = {"parameters": "bf16", "optimizer": dice.choice(["adamw-bf16", "sgd"])}
        return replace(FSDP, **more, **names)
    return replace(FSDP, **more, optimizer=dice.choice(["adamw", "momentum", "sgd"]))


@pytest.mark.parametrize("seed", range(3))
def test_random_layouts_leave_nothing_unexplained(seed):
    """Ten each. With tensors that have memory: their operators are quicker than fake ones."""
    dice = random.Random(seed)
    for _ in range(10):
        job, rank = random_job(dice)
        with fake_world(rank, job.layout.world):
            observed = one_update(job, nullcontext())
        result = compared(job, rank, observed)
        assert result.explained, f"{job}\n{result.report()}"


def test_where_all_divides_the_theory_needs_no_correction_but_counters():
    shape = replace(LLAMA, vocab=32, ffn=32)
    result = rehearse(job(shape, dp=2, tp=4), rank=7).verify()
    assert result.report().endswith("every byte and every call is the theory's, or has a name")
    named = {line.what: line.differences for line in result.lines if line.differences}
    # In a layer four matrices of attention, three of the MLP, two norms; then the last norm, the
    # embedding and the head.
    assert {what: [d.size_bytes for d in found] for what, found in named.items()} == {
        "moments": [4 * (4 + 3 + 2 + 3)]
    }


# --- what is printed, and what is left --------------------------------------------------------


def test_what_has_no_name_is_said():
    job_ = job(dp=2)
    with fake_world(0, 2) as tensors:
        observed = one_update(job_, tensors)
    sent = observed.sent | {"dp all-gather": Total(4, 1), "dp broadcast": Total(1, 7)}
    result = compared(job_, 0, Observed(observed.stored, sent))
    assert not result.explained
    assert "    +7 and +1 calls: NOT EXPLAINED" in result.report()
    assert result.report().endswith("NOT EXPLAINED: see above")
    with pytest.raises(AssertionError, match=r"and \+1 calls: NOT EXPLAINED"):
        result.verify()


def test_nothing_is_left_of_a_rehearsal():
    hook = sys.excepthook
    rehearse(job(dp=2))
    assert not dist.is_initialized()
    assert sys.excepthook is hook
    assert torch.get_default_dtype() == torch.float32


def test_a_process_in_a_group_cannot_rehearse(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    launch.init()
    with pytest.raises(RuntimeError, match=r"call launch\.finish\(\) first"):
        rehearse(job(dp=2))
    launch.finish()


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="rank must be at most 7, got 8"):
        rehearse(job(dp=4, tp=2), rank=8)
