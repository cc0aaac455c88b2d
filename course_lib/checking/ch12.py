"""Exercises and quiz of chapter 12, experts and long sequences."""

import math
from typing import Any

from course_lib.checking import (
    Question,
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_parts,
    expect_type,
)
from course_lib.checking.builds import experts as experts_build
from course_lib.checking.builds import ring_attention
from course_lib.theory.compute import flops
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.network import context, experts

_MIXTRAL = MODELS["mixtral-8x7b"]
_DEEPSEEK = MODELS["deepseek-v3"].parameters()


@exercise(
    "12.1",
    kind="calculate",
    title="Mixtral",
    hints=("SwiGLU has three matrices.", "Times 8 experts, times 32 layers; or times 2."),
)
def _mixtral(answer: Any) -> None:
    count = _MIXTRAL.parameters()
    expect_equal(
        answer,
        [count.experts // (32 * 8), count.experts, count.chosen_experts],
        "three matrices of 4096 × 14336; 8 experts in each of 32 layers; 2 of them are met",
        wants="three whole numbers of parameters",
    )


@exercise(
    "12.2",
    kind="calculate",
    title="DeepSeek-V3",
    hints=("count.total and count.active.", "Stored: all. Multiplied: the active ones."),
)
def _deepseek(answer: Any) -> None:
    expect_parts(answer, 4, "two counts, bytes and FLOP")
    total, active = _DEEPSEEK.total, _DEEPSEEK.active
    expect_number(answer[0], total, "all experts must be stored")
    expect_number(answer[1], active, "one token meets 8 of 256 experts and the shared one")
    expect_number(answer[2], 16 * total, "the optimizer keeps states of all parameters", unit="B")
    because = "N of 6N is what a token multiplies with: the active parameters"
    expect_number(answer[3], flops.six_nd(active, 1), because, rel=1e-9, unit="FLOP")


_FAMILIES = {
    "a mixture of experts can be trained on one GPU": (True, "section 12.1 did it"),
    "a mixture of experts is a way to cut work over GPUs": (
        False,
        "it is an architecture; expert parallelism cuts",
    ),
    "expert parallelism cuts the set of experts over ranks": (True, "that is what it does"),
    "a pipeline needs data parallelism": (False, "one copy of the model is enough"),
    "a pipeline cuts the layers, and the batch into micro-batches": (
        True,
        "the micro-batches keep the stages busy",
    ),
    "the stages of a pipeline are threads of one process": (
        False,
        "each rank is a process, one per accelerator",
    ),
    "Mixtral 8x7B has 56 billion parameters": (
        False,
        "only the MLPs exist eight times: 46.7 billion",
    ),
}


@exercise(
    "12.3",
    kind="debug",
    title="four families",
    hints=("Ask of each: what is cut?", "Section 12.4, the table; section 12.2 for Mixtral."),
)
def _families(answer: Any) -> None:
    expect_entries(answer, _FAMILIES, "a dict of True and False", each="True or False")


@exercise(
    "12.4",
    kind="predict",
    title="a skewed router",
    hints=(
        "expert_load(4096, 8, 1, capacity_factor=1.25, skew=1.0).",
        "Compare with its imbalance.",
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


_LOSS = "balance_loss(chosen, probabilities)"


@exercise(
    "12.5",
    kind="implement",
    title="the balance loss",
    hints=("torch.bincount(chosen.flatten(), minlength=…).", "P: the mean over the tokens."),
)
def _balance(function: Any) -> None:
    import torch

    cases = [
        ([[0], [1], [2], [3]], torch.full((4, 4), 0.25), "all alike: 1"),
        ([[0], [0]], torch.tensor([[1.0, 0, 0, 0]] * 2), "everything on one of four: 4"),
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
        loss = call(function, torch.tensor(chosen), given, signature=_LOSS)
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
    )


@exercise(
    "12.8",
    kind="implement",
    title="online softmax",
    hints=("ℓ = log(e^ℓa + e^ℓb).", "Subtract the larger ℓ before you take exp."),
)
def _merge(function: Any) -> None:
    def block(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        top = max(score for score, _ in pairs)
        weights = [math.exp(score - top) for score, _ in pairs]
        mean = sum(w * value for w, (_, value) in zip(weights, pairs, strict=True)) / sum(weights)
        return mean, top + math.log(sum(weights))

    left, right = [(1.0, 10.0), (2.0, 20.0)], [(4.0, 40.0)]
    large = [(1000.0, 5.0), (1001.0, 7.0)], [(999.0, 1.0)]
    small = [(-1000.0, 5.0)], [(-1001.0, 7.0)]
    cases = [
        ((block(left), block(right)), block(left + right), "the softmax over all three keys"),
        ((block(right), block(left)), block(left + right), "the order does not matter"),
        ((block(large[0]), block(large[1])), block(large[0] + large[1]), "scores of 1000"),
        ((block(small[0]), block(small[1])), block(small[0] + small[1]), "scores of -1000"),
    ]
    try:
        expect_calls(function, cases, signature="merge(a, b)", rel=1e-9)
    except OverflowError as error:
        raise Wrong(
            f"raised OverflowError ({error}), expected a result for scores of 1000 as well because "
            "only differences of the log-sum-exps need the exponential"
        ) from None


@exercise(
    "12.9",
    kind="predict",
    title="slices in order",
    hints=("In order: 1, 2, … 8 blocks.", "max / mean, for both; max / max for the last."),
)
def _slices(answer: Any) -> None:
    plain, mixed = (
        [context.rank_scores(65_536, rank, 8, zigzag=zigzag) for rank in range(8)]
        for zigzag in (False, True)
    )
    expect_equal(
        answer,
        [8 * max(plain) / sum(plain), 8 * max(mixed) / sum(mixed), max(plain) / max(mixed)],
        "rank r has r + 1 blocks: 8 against a mean of 4.5; zig-zag: 17 quarters for everybody",
        wants="three factors",
        rel=1e-3,
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
        "Four experts, balance loss 4. What does the router do?",
        ("all experts get the same", "everything goes to one expert", "it drops everything"),
        answer=1,
        why="1 is even; as many as there are experts is the worst.",
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
