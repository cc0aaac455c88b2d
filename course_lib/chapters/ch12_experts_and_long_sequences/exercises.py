"""Exercises and quiz of chapter 12, experts and long sequences."""

import math
from dataclasses import replace
from typing import Any

from course_lib.chapters.ch12_experts_and_long_sequences.builds import experts as experts_build
from course_lib.chapters.ch12_experts_and_long_sequences.builds import ring_attention
from course_lib.checking import (
    Wrong,
    call,
    exercise,
    expect_entries,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_type,
)
from course_lib.theory.compute import flops
from course_lib.theory.inputs.hardware import accelerator, ridge_rows
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import fewest_gpus
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network import context, experts, mesh

_MIXTRAL = MODELS["mixtral-8x7b"]
_DEEPSEEK = MODELS["deepseek-v3"].parameters()
_SPREAD = Layout(dp=16, ep=8)


@exercise("12.1")
def _mixtral(answer: Any) -> None:
    local = local_parameters(_MIXTRAL, _SPREAD, 0)
    layouts = (_SPREAD, replace(_SPREAD, zero_stage=1))
    plain, sharded = (sharded_states(local, Recipe(), layout).total_bytes for layout in layouts)
    stored = "all of the dense part, and an eighth of the experts"
    copies = "16 ranks are two groups of 8, each with all experts"
    cut = "12 bytes a parameter are cut: into 16 for the dense part, into 2 for experts"
    expect_numbers(
        answer,
        "two counts and two numbers of bytes",
        (local.dense + local.experts, stored, 5e-3, "parameters"),
        (_SPREAD.expert_shard_ranks, copies, 0, ""),
        (plain, "16 bytes for each stored parameter", 5e-3, "B"),
        (sharded, cut, 5e-3, "B"),
    )


@exercise("12.2")
def _deepseek(answer: Any) -> None:
    mfu = flops.six_nd(_DEEPSEEK.active, 1) * 1543 / accelerator("H800-SXM").peak_flop_per_s
    active = "N of 6N is what a token multiplies with: the active parameters"
    stored = "all experts must be stored, since other tokens need them"
    gpus = fewest_gpus(16 * _DEEPSEEK.total, 80e9)
    rows = ((mfu, active, 5e-3, ""), (gpus, stored, 0, ""))
    expect_numbers(answer, "an MFU and a number of GPUs", *rows)


_MESH = Layout(tp=2, cp=2, dp=4, ep=4)
_RANK = 6


@exercise("12.3")
def _sharing(answer: Any) -> None:
    half = mesh.place(_MESH, _RANK)["tp"]
    same_half = tuple(r for r in range(_MESH.world) if mesh.place(_MESH, r)["tp"] == half)
    groups = {
        "tp: the matrices of its attention": (
            mesh.groups(_MESH, "tp"),
            "neighbours in number cut the matrices",
        ),
        "cp: its sequences": (mesh.groups(_MESH, "cp"), "cp comes next: a stride of 2"),
        "the sum of the gradients of its attention": (
            (same_half,),
            "over cp and dp together: all that have the same half, with other tokens",
        ),
    }
    for etp in (1, 2):
        groups[f"etp {etp}: the all-to-all of its tokens"] = (
            mesh.expert_groups(_MESH, "ep", etp),
            f"four ranks have all experts between them, a stride of etp = {etp} apart",
        )
        groups[f"etp {etp}: the sum of its experts' gradients"] = (
            mesh.expert_groups(_MESH, "edp", etp),
            f"every {4 * etp}th rank has the same part of the same experts",
        )
    right = {
        name: (list(next(group for group in several if _RANK in group)), because)
        for name, (several, because) in groups.items()
    }
    expect_entries(answer, right, "a dict of lists", each="a list of ranks in order")


@exercise("12.5")
def _balance(function: Any) -> None:
    import torch

    cases = [
        ([[0], [1], [2], [3]], torch.full((4, 4), 0.25), "all alike: 1"),
        ([[0], [0]], torch.tensor([[1.0, 0, 0, 0]] * 2), "everything on one of four: 4"),
        ([[0, 1]] * 2, torch.tensor([[0.5, 0.5, 0, 0]] * 2), "k = 2 of four take everything: 2"),
        ([[0, 1], [0, 2], [1, 0]], torch.tensor([[0.5, 0.3, 0.2]] * 3), "6 choices of 3 tokens"),
        (
            [[2], [0], [2]],
            torch.tensor([[0.2, 0.2, 0.6], [0.7, 0.1, 0.2], [0.1, 0.1, 0.8]]),
            "f is a share of choices, P a mean over tokens",
        ),
    ]
    for chosen, probabilities, because in cases:
        load = torch.bincount(torch.tensor(chosen).flatten(), minlength=probabilities.shape[1])
        expected = experts.balance_loss(load.tolist(), probabilities.mean(0).tolist())
        leaf = probabilities.clone().requires_grad_()
        loss = call(
            function, torch.tensor(chosen), leaf, signature="balance_loss(chosen, probabilities)"
        )
        expect_type(loss, torch.Tensor, "a tensor")
        expect_number(loss, expected, because, rel=1e-5)
    if not loss.requires_grad:
        raise Wrong("gave a loss without gradient, expected one that reaches the probabilities")


_FAULTS = {
    "A": ("weights that cancel", "p / p is 1, which has no gradient: the router learns nothing"),
    "B": ("no balance", "one expert has nearly everything"),
    "C": ("small capacity", "each expert accepts 0.75 of the mean: at least a quarter is dropped"),
    "D": ("a sum of means", "four ranks' losses are means over 64 tokens each, not over 256"),
}


@exercise("12.6")
def _faults(answer: Any) -> None:
    expect_entries(answer, _FAULTS, "a dict of faults", each="the name of a fault")


def _fewer_bytes(shape: TransformerShape, cp: int, tp: int = 1) -> tuple[str, float]:
    """Which sends fewer bytes along cp, and the ring's over those of the all-to-all."""
    width = shape.kv_heads * shape.hidden // shape.heads
    factor = 3 * cp * width / (2 * (shape.hidden + width))
    enough_heads = shape.kv_heads // tp >= cp
    return "all-to-all" if factor > 1 and enough_heads else "ring", factor


@exercise("12.7")
def _ring_or_heads(answer: Any) -> None:
    gqa, plain = MODELS["llama3.1-8b"], MODELS["llama2-7b"]
    choices = {
        "LLaMA-3.1 8B, cp 2": (_fewer_bytes(gqa, 2), "a ring of two makes one hop in each round"),
        "LLaMA-3.1 8B, cp 8": (_fewer_bytes(gqa, 8), "8 key heads suffice, and 2.4 > 1"),
        "LLaMA-3.1 8B, cp 16": (_fewer_bytes(gqa, 16), "8 key heads do not suffice for 16 ranks"),
        "LLaMA-3.1 8B, tp 4, cp 4": (
            _fewer_bytes(gqa, 4, tp=4),
            "tp leaves a GPU 2 key heads, for 4 ranks",
        ),
        "LLaMA-2 7B, cp 16": (_fewer_bytes(plain, 16), "32 key heads suffice, and w = h"),
    }
    expect_parts(answer, 2, "a dict of choices and a factor")
    right = {name: (choice, because) for name, ((choice, _), because) in choices.items()}
    expect_entries(answer[0], right, "a dict of choices", each="'ring' or 'all-to-all'")
    factor = choices["LLaMA-3.1 8B, cp 8"][0][1]
    expect_number(answer[1], factor, "3 n w / (2 (h + w)), whatever the tokens", rel=5e-3)


_TOKENS = 131_072


def _largest_degree(kv_width: int, bytes_per_s: float) -> int:
    """Largest power of two at which computation hides the hops of a causal zig-zag ring."""
    peak = accelerator("H100-SXM").peak_flop_per_s
    tokens = context.hidden_ring_tokens(peak, bytes_per_s, hidden=4096, kv_width=kv_width)
    degree = 1
    while _TOKENS / (2 * degree) >= 2 * tokens:  # each rank computes half a block per hop
        degree *= 2
    return degree


@exercise("12.9")
def _slices(answer: Any) -> None:
    wires = {
        (1024, 50e9): "a slice needs 9,894 tokens: in each hop a rank computes half a block",
        (4096, 50e9): "four times the bytes need slices four times as long",
        (1024, 450e9): "nine times the bandwidth needs a ninth of the slice",
    }
    rows = [(_largest_degree(*wire), because, 0.0, "") for wire, because in wires.items()]
    ranks = int(rows[0][0])
    plain, mixed = (
        max(context.rank_scores(_TOKENS, rank, ranks, zigzag=zigzag) for rank in range(ranks))
        for zigzag in (False, True)
    )
    because = "the last of 8 ranks sees 8 blocks; zig-zag: 17 quarters of a block for everybody"
    last = (plain / mixed, because, 5e-3, "")
    expect_numbers(answer, "three degrees and a factor", *rows, last)


@exercise("12.12")
def _narrow(answer: Any) -> None:
    chip = accelerator("H100-SXM")
    per_byte = experts.routed_intensity(768)
    wire = chip.peak_flop_per_s / per_byte
    rows = ridge_rows(2048, 768, chip.ridge_flop_per_byte)
    enough = 2 ** math.ceil(math.log2(rows / (4096 * 8 / 128)))
    expect_numbers(
        answer,
        "FLOP per byte, bytes per second, rows, and ep",
        (per_byte, "2.25 times the width, three matrices in 16 bits", 5e-3, ""),
        (wire, "peak / FLOP per byte: more than NVLink", 5e-3, "B/s"),
        (rows, "R / (1 - R (1/h + 1/f)), with the ridge 295", 5e-3, ""),
        (enough, "each GPU of the group brings an expert 256 rows", 0, ""),
    )


BUILDS = (experts_build.EXPERTS, ring_attention.RING_ATTENTION)
