"""Exercises and quiz of chapter 9, FSDP and YaFSDP."""

import math
from dataclasses import replace
from typing import Any

from course_lib.chapters.ch09_fsdp import builds
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.chapters.ch09_fsdp.hiding import fsdp_hiding_tokens
from course_lib.checking import (
    Wrong,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_raises,
    expect_type,
)
from course_lib.theory.audits.gpt2_128 import Program
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import RECIPES, Recipe
from course_lib.theory.inputs.units import GB
from course_lib.theory.memory.peak import gpu_memory
from course_lib.theory.memory.states import MemoryBreakdown, local_parameters
from course_lib.theory.planner.space import MARGIN

_XL = MODELS["gpt2-1.5b"]
_FP32 = RECIPES["fp32-16"]


@exercise("9.1")
def _collectives(answer: Any) -> None:
    step = gather_timeline(_XL, Recipe(), ranks=2)
    local = local_parameters(_XL)
    gathered = 2 * (2 * _XL.layers * local.layer_dense + local.ends_dense) / GB
    expect_parts(answer, 3, "two counts and GB")
    counts, because = [step.all_gathers, step.reduce_scatters], "layers are gathered twice"
    expect_equal(answer[:2], counts, f"{because}, the root once")
    expect_number(answer[2], gathered, f"{because}; 2 bytes a number", rel=1e-3, unit="GB")


@exercise("9.2")
def _flat(function: Any) -> None:
    cases = [
        (([(3, 5), (3,)], 4), (5, 2), "18 numbers on 4 ranks are 5 each, and 2 of padding"),
        (([(4, 4)], 4), (4, 0), "16 numbers on 4 ranks need no padding"),
        (([(64, 64), (64,)], 3), (1387, 1), "4160 numbers on 3 ranks are 1387 each"),
        (([(5,), (5,)], 4), (3, 2), "the unit is padded as a whole, not each tensor"),
        (([(7, 2)], 1), (14, 0), "one rank keeps everything"),
    ]
    expect_calls(function, cases, signature="flat_shard(shapes, ranks)")
    for ranks in (0, -1):
        expect_raises(function, ([(4,)], ranks), ValueError, "there is no rank")


@exercise("9.3")
def _not_fsdp(answer: Any) -> None:
    shape = MODELS["llama3-405b"]
    layer = local_parameters(shape).layer_dense
    cut = local_parameters(shape, Layout(dp=64, tp=8, zero_stage=3)).layer_dense
    because = "a rank gathers the whole layer and computes with all of it"
    expect_numbers(
        answer,
        "three numbers of parameters",
        (layer, because, 1e-3, "parameters"),
        (layer / 64, "a 64th of it stays", 1e-3, "parameters"),
        # An eighth, norms included, would be smaller by 7e-5.
        (cut, "tensor parallelism cuts the matrices by 8, not the norms", 2e-5, "parameters"),
    )


_STRATEGIES: dict[str, dict[str, Any]] = {
    "DDP": {},
    "HYBRID_SHARD": {"zero_stage": 3, "shard_group": 8},
    "FULL_SHARD": {"zero_stage": 3},
}
# (model, sequences in a micro-batch, tokens in each, recomputation), and the reason.
_TRAININGS = {
    "gpt2-1.5b, 8 sequences of 1024, nothing recomputed": (
        ("gpt2-1.5b", 8, 1024, "none"),
        "25 GB of states and as much of activations fit as they are",
    ),
    "llama2-13b, 1 sequence of 4096, nothing recomputed": (
        ("llama2-13b", 1, 4096, "none"),
        "208 GB of states do not fit; an eighth of them does, beside the activations",
    ),
    "llama2-7b, 4 sequences of 4096, nothing recomputed": (
        ("llama2-7b", 4, 4096, "none"),
        "four sequences keep more than a GPU has, and no strategy shards activations",
    ),
    "llama2-70b, 1 sequence of 4096, all recomputed": (
        ("llama2-70b", 1, 4096, "full"),
        "an eighth of 1.1 TB of states is 138 GB; only all 64 together have room",
    ),
}


def _simplest(model: str, batch: int, tokens: int, recompute: str) -> str:
    """The simplest strategy that fits into an H100, less the planner's margin, or "none"."""
    room = accelerator("H100-SXM").memory_bytes * (1 - MARGIN)
    for name, options in _STRATEGIES.items():
        layout = Layout(dp=64, micro_batch=batch, **options)
        job = Job(MODELS[model], Recipe(recompute=recompute), layout, sequence=tokens)
        if gpu_memory(job).total_bytes <= room:
            return name
    return "none"


@exercise("9.4")
def _strategy(answer: Any) -> None:
    right = {name: (_simplest(*case), because) for name, (case, because) in _TRAININGS.items()}
    expect_entries(answer, right, "a dict of strategies", each="a strategy or 'none'")


_SEVEN = MODELS["llama2-7b"]


@exercise("9.5")
def _profile(answer: Any) -> None:
    settings = {
        "no prefetch": (True, False, "the next layer is not there while one computes"),
        "no reshard": (False, True, "layers stay from forward to backward: gathered once"),
        "as advised": (True, True, "each layer twice, the root once; two layers and the root"),
    }
    size = f"{Recipe().weight_bytes * _SEVEN.parameters().total / GB:.2f} GB"
    because = "without units of their own all layers belong to the root, one unit for all"
    right = {f"1 all-gather, 1 reduce-scatter, {size}": ("layers not wrapped", because)}
    for name, (reshard, prefetch, because) in settings.items():
        step = gather_timeline(_SEVEN, Recipe(), 8, reshard=reshard, prefetch=prefetch)
        calls = f"{step.all_gathers} all-gathers, {step.reduce_scatters} reduce-scatters"
        right[f"{calls}, {step.peak_weights_bytes / GB:.2f} GB"] = (name, because)
    expect_entries(answer, right, "a dict of settings", each="one of the four settings")


def _bill(ranks: int, recompute: str = "none", sequence: int = 4096) -> MemoryBreakdown:
    layout = Layout(dp=ranks, zero_stage=3)
    shape = MODELS["llama2-13b"]
    return gpu_memory(Job(shape, Recipe(recompute=recompute), layout, sequence=sequence))


@exercise("9.6")
def _more_cards(answer: Any) -> None:
    expect_parts(answer, 2, "a dict of True and False, and GB")
    room = accelerator("RTX4090").memory_bytes * (1 - MARGIN)
    bills = {
        "64 cards": (_bill(64), "10 GB less of shards, where 27 are missing"),
        "1024 cards": (_bill(1024), "all shards are gone, and 37 GB are left"),
        "sequences of 2048 tokens": (_bill(16, sequence=2048), "half of the activations stay"),
        "full recomputation": (_bill(16, "full"), "activations were 32 GB"),
        "full recomputation, on 8 cards": (_bill(8, "full"), "the shards are twice as large"),
    }
    right = {name: (bill.total_bytes <= room, because) for name, (bill, because) in bills.items()}
    expect_entries(answer[0], right, "a dict of True and False", each="True or False")
    bill = _bill(16)
    stays = (bill.total_bytes - bill.model_states_bytes) / GB
    because = "activations, whole tensors and the framework's own, on any number of cards"
    expect_number(answer[1], stays, because, rel=1e-2, unit="GB")


# Millions of parameters in table 2 of Radford et al. 2019, "Language Models are Unsupervised
# Multitask Learners". No cause was published; GPT-1's vocabulary of 40,478 explains all four.
_PAPER = {"gpt2-124m": 117, "gpt2-355m": 345, "gpt2-774m": 762, "gpt2-1.5b": 1542}


@exercise("9.7")
def _gpt2(answer: Any) -> None:
    expect_parts(answer, 3, "a vocabulary, GB and a number of samples")
    expect_type(answer[0], int, "a whole number of words")
    if not 1 <= answer[0] < 10**6:
        raise Wrong(f"wants a vocabulary of less than a million words, got {answer[0]}")
    counted = [
        round(replace(MODELS[name], vocab=answer[0]).parameters().total / 1e6) for name in _PAPER
    ]
    because = "12 million are 9,779 rows of 1,280 numbers: GPT-1's vocabulary has 40,478 words"
    what = "in millions, your vocabulary"
    expect_equal(counted, list(_PAPER.values()), because, what=what)
    sharded_gb = gather_timeline(_XL, _FP32, 2, reshard=False).peak_bytes / GB
    because = "half of all states, all weights whole, and the gradients of a layer or two"
    expect_number(answer[1], sharded_gb, because, rel=1e-2, unit="GB")
    because = "the memory that is left, over what the program keeps for each sample"
    expect_number(answer[2], Program(_XL).largest_batch("SHARD_GRAD_OP"), because)


@exercise("9.8")
def _early(answer: Any) -> None:
    expect_equal(
        answer,
        [0, 9152, 28, 4576],
        "too early: whole parameters that get no gradient; after it: shards, half of them",
        wants="four whole numbers",
    )


@exercise("9.9")
def _two_units(function: Any) -> None:
    tied = {"embedding": {"embedding.weight": 1}, "head": {"norm": 2, "head.weight": 1}}
    cases = [
        ((tied,), ["embedding.weight", "head.weight"], "tensor 1 is in both units"),
        (({"root": {"embedding.weight": 1, "head.weight": 1}},), [], "two names, but one unit"),
        (({"a": {"x": 1}, "b": {"y": 2}},), [], "nothing is shared"),
        (
            ({"a": {"z": 1, "x": 3}, "b": {"y": 1}, "c": {"b": 3, "w": 4}},),
            ["b", "x", "y", "z"],
            "tensors 1 and 3 are shared; names are sorted",
        ),
    ]
    expect_calls(function, cases, signature="in_two_units(units)")


@exercise("9.10")
def _peak(answer: Any) -> None:
    shape = MODELS["llama2-70b"]
    plain, yafsdp = Recipe(), Recipe(gathering="yafsdp")
    steps = {
        "two layers and the root": gather_timeline(shape, plain, 64),
        "one layer and the root": gather_timeline(shape, plain, 64, prefetch=False),
        "all layers and the root: the whole model": gather_timeline(
            shape, plain, 64, reshard=False
        ),
        "two buffers of the largest unit, a layer; no root": gather_timeline(shape, yafsdp, 64),
    }
    rows = ((step.peak_weights_bytes / GB, why, 5e-3, "GB") for why, step in steps.items())
    expect_numbers(answer, "four sizes in GB", *rows)


@exercise("9.12")
def _in_use(answer: Any) -> None:
    recipe = Recipe("fp32", "fp32", master_copy=False, compute="bf16")
    rates = {"flop_per_s": 156e12, "bytes_per_s": 4 * 25e9}
    hidden = fsdp_hiding_tokens(recipe, 32, **rates).backward
    step = gather_timeline(_SEVEN, recipe, 32)
    sent = "31/32 of 6 bytes, sent at 100 GB/s, while it does 4 FLOP for each token"
    freed = "weights are freed after each pass, so each micro-batch gathers them"
    whole = 4 * _SEVEN.parameters().total / GB
    expect_numbers(
        answer,
        "tokens, sequences, GB and two counts",
        (hidden, sent, 2e-3, "tokens"),
        (math.ceil(hidden / 2048), "one sequence is too short", 0, ""),
        (whole, "no shards: 4 bytes for each parameter", 2e-3, "GB"),
        (4 * step.all_gathers, freed, 0, ""),
        (step.reduce_scatters, "only the last micro-batch reduces", 0, ""),
    )


BUILDS = (builds.FSDP,)
