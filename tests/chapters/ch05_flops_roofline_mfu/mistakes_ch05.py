"""Answers to chapter 5 that a check must refuse: (exercise, what was thought, answer)."""

import itertools


def _stack(first=2, refuse=True, factor=2):
    def stack_flop(widths, tokens):
        if refuse and len(widths) < 2:
            raise ValueError(widths)
        pairs = list(itertools.pairwise(widths))
        return sum(
            (first if number == 0 else 3) * factor * tokens * a * b
            for number, (a, b) in enumerate(pairs)
        )

    return stack_flop


def _palm(scores, by_hidden=False):
    def palm_mfu(rate, parameters, layers, heads, width, hidden, sequence, chips, peak):
        wide = hidden if by_hidden else heads * width
        each = 6 * parameters + scores * layers * wide * sequence
        return each * rate / (chips * peak)

    return palm_mfu


_DAY = 86_400
_COUNTED = {
    854_438_400: "all pairs",
    746_638_848: "6N",
    284_812_800: "forward only",
    1_062_056_448: "recomputation",
    797_815_296: "causal half",
}
_FASTER = {
    "8192 tokens times the matrix": 1,
    "256 tokens times the matrix": 1.298,
    "1 token times the matrix": 1.433,
    "AdamW's update": 1.433,
    "an all-reduce over NVLink": 1,
}
MISTAKES = [
    ("5.1", "the cheapest, which is too slow", ("C", 45.3, 114_836)),
    ("5.1", "the fastest", ("A", 25.15, 216_340)),
    ("5.1", "at the full peak", ("B", 14.28, 52_625)),
    ("5.1", "the price of one GPU", ("B", 35.69, 2056)),
    ("5.2", "a rate", (1.96608e14, "FLOP/s", 1.19)),
    ("5.2", "the fp16 peak", (1.96608e14, "FLOP", 1.96608e14 / 330e12)),
    ("5.3", "swaps full and half", _COUNTED | {854_438_400: "causal half"}),
    ("5.3", "recomputation by 6N", _COUNTED | {1_062_056_448: "6N"}),
    ("5.4", "the data's gradient as well", _stack(first=3)),
    ("5.4", "multiply-adds for FLOP", _stack(factor=1)),
    ("5.4", "accepts anything", _stack(refuse=False)),
    ("5.5", "all by 6N", [3858.5, 3704.2, 4784.5, 3318.3]),
    ("5.5", "all by all pairs", [3385.1, 3249.7, 4197.5, 2911.2]),
    ("5.6", "256 tokens wait on both", _FASTER | {"256 tokens times the matrix": 1.433}),
    ("5.6", "the network is memory", _FASTER | {"an all-reduce over NVLink": 1.433}),
    ("5.7", "sparse peak", 0.1394),
    ("5.7", "percent of the sparse peak", 13.9),
    ("5.7", "70 billion for 70.55", 6 * 70e9 * 15e12 / (6.4e6 * 3600 * 989.4e12)),
    ("5.8", "one GPU", (1.4e12 / 380 / _DAY, 1.4e12 / 380 / 3600, 0.4765)),
    ("5.8", "with recomputation", (20.8, 1_023_392, 0.635)),
    ("5.9", "forgets attention", _palm(scores=0)),
    ("5.9", "causal half", _palm(scores=6)),
    ("5.9", "the hidden size", _palm(scores=12, by_hidden=True)),
    ("5.10", "one step too early", (64, 256, 0)),
    ("5.10", "enough tokens are always enough", (128, 512, 1024)),
    ("5.10", "small matrices never", (128, 0, 0)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("5.5", "rounded", (3385, 3494, 3162, 3318)),
    ("5.6", "rounded", _FASTER),
    ("5.1", "rounded", ("B", 35.7, 131_600)),
    ("5.7", "percent", 27.9),
    ("5.8", "percent", (20.8, 1_023_392, 47.65)),
]
