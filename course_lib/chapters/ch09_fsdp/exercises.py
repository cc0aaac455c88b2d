"""Exercises and quiz of chapter 9, FSDP and YaFSDP."""

import math
from typing import Any

from course_lib.chapters.ch09_fsdp import builds
from course_lib.chapters.ch09_fsdp.gather_timeline import gather_timeline
from course_lib.chapters.ch09_fsdp.hiding import fsdp_hiding_tokens
from course_lib.checking import (
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_parts,
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


@exercise("9.7")
def _empty_cell(answer: Any) -> None:
    expect_parts(answer, 2, "GB and a number of samples")
    sharded_gb = gather_timeline(_XL, _FP32, 2, reshard=False).peak_bytes / GB
    because = "half of all states, all weights whole, and the gradients of a layer or two"
    expect_number(answer[0], sharded_gb, because, rel=1e-2, unit="GB")
    because = "the memory that is left, over what the program keeps for each sample"
    expect_number(answer[1], Program(_XL).largest_batch("SHARD_GRAD_OP"), because)


@exercise("9.8")
def _early(answer: Any) -> None:
    expect_equal(
        answer,
        [0, 9152, 28, 4576],
        "too early: whole parameters that get no gradient; after it: shards, half of them",
        wants="four whole numbers",
    )


@exercise("9.9")
def _choose(function: Any) -> None:
    nodes = (80, 64, 8)  # GB of a card, cards, cards in a node
    cases = [
        ((25, 30, *nodes, 8192, 1461), "DDP", "55 GB fit on one card: nothing needs cutting"),
        ((25, 30, *nodes, 512, 1461), "DDP", "what fits needs no gathers, however few the tokens"),
        ((208, 40, *nodes, 1024, 1461), "HYBRID_SHARD", "26 + 40 GB fit, and messages would show"),
        ((208, 40, *nodes, 1461, 1461), "FULL_SHARD", "1461 tokens hide the messages"),
        ((1104, 15, *nodes, 1024, 1461), "FULL_SHARD", "138 GB do not fit, 17 GB do"),
        ((208, 56, *nodes, 1024, 1461), "FULL_SHARD", "26 + 56 GB do not fit, 3 + 56 do"),
        ((108, 79, *nodes, 4096, 1461), "none", "sharding leaves the 79 GB as they are"),
        ((108, 20, 24, 8, 8, 1024, 974), "none", "13.5 + 20 GB do not fit on 24"),
    ]
    signature = "strategy(states_gb, rest_gb, card_gb, cards, per_node, tokens, hiding_tokens)"
    expect_calls(function, cases, signature=signature)


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
