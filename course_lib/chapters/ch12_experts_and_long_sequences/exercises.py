"""Exercises and quiz of chapter 12, experts and long sequences."""

import math
from dataclasses import replace
from typing import Any

from course_lib.chapters.ch12_experts_and_long_sequences.builds import experts as experts_build
from course_lib.chapters.ch12_experts_and_long_sequences.builds import ring_attention
from course_lib.checking import (
    Question,
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_type,
)
from course_lib.theory.compute import flops
from course_lib.theory.inputs.hardware import accelerator, ridge_rows
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.memory.peak import fewest_gpus
from course_lib.theory.memory.states import local_parameters, sharded_states
from course_lib.theory.network import context, experts, mesh

_MIXTRAL = MODELS["mixtral-8x7b"]
_DEEPSEEK = MODELS["deepseek-v3"].parameters()
_SPREAD = Layout(dp=16, ep=8)


@exercise(
    "12.1",
    kind="calculate",
    title="Mixtral on 16 GPUs",
    hints=(
        "Which parameters does expert parallelism spread, and which are on every GPU?",
        "Of 16 ranks 8 are one set of experts. How many ranks hold the same expert?",
        "ZeRO-1 shards the 12 bytes of states: over 16 GPUs for what all of them hold, over fewer "
        "for an expert.",
    ),
)
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


@exercise(
    "12.2",
    kind="calculate",
    title="two wrong counts",
    hints=(
        "An MFU over 100 % multiplies with parameters that no token meets.",
        "Must a GPU store an expert that this token does not use?",
    ),
)
def _deepseek(answer: Any) -> None:
    mfu = flops.six_nd(_DEEPSEEK.active, 1) * 1543 / accelerator("H800-SXM").peak_flop_per_s
    active = "N of 6N is what a token multiplies with: the active parameters"
    stored = "all experts must be stored, since other tokens need them"
    gpus = fewest_gpus(16 * _DEEPSEEK.total, 80e9)
    rows = ((mfu, active, 5e-3, ""), (gpus, stored, 0, ""))
    expect_numbers(answer, "an MFU and a number of GPUs", *rows)


_MESH = Layout(tp=2, cp=2, dp=4, ep=4)
_RANK = 6


@exercise(
    "12.3",
    kind="predict",
    title="who shares what",
    hints=(
        "Write ranks 0 to 15 in rows of two (tp), and rows in blocks of two (cp): rank 6 is where?",
        "Who has other tokens, but the same weights? Their gradients are summed.",
        "The experts' mesh deals the 16 ranks out anew: etp neighbours, then 4 of ep, then edp.",
    ),
)
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


@exercise(
    "12.4",
    kind="predict",
    title="a skewed router",
    hints=(
        "Each expert takes 1.25 times the mean. How far above it is the favourite?",
        "expert_load(4096, 8, 1, capacity_factor=1.25, skew=1.0).dropped_fraction; .imbalance.",
    ),
)
def _skewed(answer: Any) -> None:
    loads = {
        factor: experts.expert_load(4096, 8, 1, capacity_factor=factor, skew=1.0)
        for factor in (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    }
    enough = min(factor for factor, load in loads.items() if not load.dropped)
    expect_equal(
        answer,
        [loads[1.25].dropped_fraction, enough],
        f"choices above 1.25 × 512 are dropped, of all 4096; the factor must reach the imbalance, "
        f"{loads[1.0].imbalance:.2f}",
        wants="a fraction and a factor",
        rel=1e-3,
    )


@exercise(
    "12.5",
    kind="implement",
    title="the balance loss",
    hints=(
        "f is counted, P is averaged. Over which dimension, and which of them has a gradient?",
        "f: torch.bincount(chosen.flatten(), minlength=…), divided by all choices.",
    ),
)
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
        given = probabilities.clone().requires_grad_()
        loss = call(
            function, torch.tensor(chosen), given, signature="balance_loss(chosen, probabilities)"
        )
        expect_type(loss, torch.Tensor, "a tensor")
        expect_number(loss, expected, because, rel=1e-5)
    if not loss.requires_grad:
        raise Wrong("gave a loss without gradient, expected one that reaches the probabilities")


@exercise(
    "12.6",
    kind="debug",
    title="the router that never learns",
    hints=("What is p / p?", "Section 12.1: with k = 1 the weight is the probability."),
)
def _weights(function: Any) -> None:
    import torch

    two = torch.tensor([[0.5, 0.25], [0.2, 0.2]])
    given = call(function, two.clone(), signature="expert_weights(chosen_probabilities)")
    sums = "two experts: the weights of a token add up to 1"
    expect_equal(given, (two / two.sum(1, keepdim=True)).tolist(), sums, "a tensor", rel=1e-5)
    one = torch.tensor([[0.5], [0.25]], requires_grad=True)
    because = "one expert: its weight is its probability, or there is no gradient"
    given = call(function, one)
    expect_equal(given, one.tolist(), because, "a tensor", rel=1e-5)
    if not getattr(given, "requires_grad", False):
        raise Wrong("gave weights without gradient, expected some because the router learns by it")


@exercise(
    "12.7",
    kind="calculate",
    title="routed bytes",
    hints=("A row has 4096 numbers of 2 bytes.", "Combine gives back what was received."),
)
def _routed(answer: Any) -> None:
    kept, row = ((900, 100, 600, 400), (800, 300, 500, 400)), 2 * 4096
    one_way = sum(kept[0]) * row
    step = experts.routed_bytes(kept, 0, row)
    expect_equal(
        answer,
        [one_way, step // 2 - one_way, step],
        "dispatch: the 2000 rows of its own tokens; combine: the 2100 rows that its two experts "
        "received; both once more in backward",
        wants="three whole numbers of bytes",
        unit="B",
    )


@exercise(
    "12.8",
    kind="implement",
    title="online softmax",
    hints=(
        "Each mean counts as much as its block's denominator, which is e^ℓ.",
        "Only the difference of the two ℓ matters: subtract the larger one before you take exp.",
    ),
)
def _merge(function: Any) -> None:
    def block(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        top = max(score for score, _ in pairs)
        weights = [math.exp(score - top) for score, _ in pairs]
        mean = sum(w * value for w, (_, value) in zip(weights, pairs, strict=True)) / sum(weights)
        return mean, top + math.log(sum(weights))

    two, one = [(1.0, 10.0), (2.0, 20.0)], [(4.0, 40.0)]
    pairs = {
        "the softmax over all three keys": (two, one),
        "the order does not matter": (one, two),
        "scores of 1000": ([(1000.0, 5.0), (1001.0, 7.0)], [(999.0, 1.0)]),
        "scores of -1000": ([(-1000.0, 5.0)], [(-1001.0, 7.0)]),
    }
    cases = [((block(a), block(b)), block(a + b), because) for because, (a, b) in pairs.items()]
    try:
        expect_calls(function, cases, signature="merge(a, b)", rel=1e-9)
    except OverflowError as error:
        raise Wrong(
            f"raised OverflowError ({error}), expected a result for scores of 1000 as well because "
            "only differences of the log-sum-exps need the exponential"
        ) from None


_TOKENS = 131_072


def _largest_degree(kv_width: int, bytes_per_s: float) -> int:
    """Largest power of two at which the hops of a causal zig-zag ring hide behind computing."""
    peak = accelerator("H100-SXM").peak_flop_per_s
    tokens = context.hidden_ring_tokens(peak, bytes_per_s, hidden=4096, kv_width=kv_width)
    degree = 1
    while _TOKENS / (2 * degree) >= 2 * tokens:  # half a block for every rank in each hop
        degree *= 2
    return degree


@exercise(
    "12.9",
    kind="predict",
    title="as many ranks as the ring hides",
    hints=(
        "More ranks have shorter slices. What does a shorter slice do to computing, and to a hop?",
        "hidden_ring_tokens(989.4e12, 50e9, hidden=4096, kv_width=1024) is for whole blocks: "
        "section 12.7 says which part of a block a rank with zig-zag slices computes in a hop.",
        "Tokens / tokens of a slice, rounded down to a power of two; max / max for the last.",
    ),
)
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


@exercise(
    "12.12",
    kind="calculate",
    title="narrow experts",
    hints=(
        "Section 12.4: FLOP for each byte follow from the width alone.",
        "A wire can be hidden if peak / bandwidth is at most that: solve for the bandwidth.",
        "hardware.ridge_rows(2048, 768, h100.ridge_flop_per_byte). An expert gets tokens · 8 / 128 "
        "rows from each GPU of the ep group.",
    ),
)
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
QUIZ = (
    Question(
        "Mixtral has 46.7 B parameters, 12.9 B of them active. What needs memory on the GPUs?",
        ("states of 12.9 B", "states of 46.7 B", "states of 56 B"),
        answer=1,
        why="Another token may need any expert: all are stored. Active ones decide the time.",
    ),
    Question(
        "The busiest of 8 experts has 1.8 times the mean. Capacity factor 1.25. What happens?",
        ("nothing is dropped", "that expert drops 30 % of its tokens", "it drops 80 % of them"),
        answer=1,
        why="It accepts 1.25 of 1.8: (1.8 - 1.25) / 1.8 = 0.31.",
    ),
    Question(
        "Four experts, one for each token, balance loss 4. What does the router do?",
        ("all experts get the same", "everything goes to one expert", "it drops everything"),
        answer=1,
        why="1 is even. E / k is the worst: 4 for k = 1, and 2 if each token had two experts.",
    ),
    Question(
        "A bias for the choice replaces the balance loss. With what are the results weighed?",
        ("the probabilities plus the biases", "the probabilities alone", "the biases alone"),
        answer=1,
        why="The bias decides who is chosen; without a say in the result it disturbs no gradient.",
    ),
    Question(
        "Why is an expert's gradient not all-reduced when each expert lies on one rank?",
        (
            "experts are not trained",
            "tokens of all ranks came to it: its gradient is complete",
            "it would be too large",
        ),
        answer=1,
        why="The all-to-all brought it the tokens of the whole batch.",
    ),
    Question(
        "Twice as many experts, half as wide, and each token uses twice as many. What changes?",
        (
            "nothing: the FLOP stay the same",
            "as many FLOP for twice the bytes: the all-to-all hides worse",
            "half the bytes, since the experts are smaller",
        ),
        answer=1,
        why="FLOP per byte are 2.25 f. A token travels to each of its experts, narrow or wide.",
    ),
    Question(
        "128 rows for each expert, but it takes 363 to fill the chip. What helps?",
        (
            "experts on more ranks: each gets the rows of more GPUs",
            "more experts of the same size",
            "a higher capacity factor",
        ),
        answer=0,
        why="With ep e an expert gets the rows of e GPUs: 128 · e, if all are equally popular.",
    ),
    Question(
        "Ring attention, causal, 8 ranks with slices in order. What is wrong?",
        (
            "the result is an approximation",
            "the last rank has 8 times the work of the first",
            "the first rank waits for its keys",
        ),
        answer=1,
        why="Its queries see all slices, those of rank 0 only their own. Zig-zag evens it out.",
    ),
)
