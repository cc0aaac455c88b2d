"""Answers to chapter 5 that a check must refuse: (exercise, what was thought, answer)."""

import itertools


def _stack(first=2, later=3, refuse=True, factor=2):
    def stack_flop(widths, tokens):
        if refuse and len(widths) < 2:
            raise ValueError(widths)
        pairs = list(itertools.pairwise(widths))
        return sum(
            (first if number == 0 else later) * factor * tokens * a * b
            for number, (a, b) in enumerate(pairs)
        )

    return stack_flop


def _palm(scores=12, all_chips=True):
    def palm_mfu(rate, parameters, layers, heads, width, sequence, chips, peak):
        each = 6 * parameters + scores * layers * heads * width * sequence
        return each * rate / ((chips if all_chips else 1) * peak)

    return palm_mfu


_DAY = 86_400
MISTAKES = [
    ("5.1", "forgets recomputation", (3.15e23, 3.15e23 / (1024 * 140e12) / _DAY)),
    ("5.1", "hours for days", (4.2e23, 4.2e23 / (1024 * 140e12) / 3600)),
    ("5.2", "a rate", (1.96608e14, "FLOP/s", 1.19)),
    ("5.2", "the fp16 peak", (1.96608e14, "FLOP", 1.96608e14 / 330e12)),
    ("5.2", "forward only", (6.5536e13, "FLOP", 0.397)),
    ("5.3", "half of six is forward", (6 * 124_439_808, 12 * 12 * 768 * 1024, 3)),
    ("5.3", "one layer's scores", (6 * 124_439_808, 12 * 768 * 1024, 2)),
    ("5.3", "six in all", (6, 12 * 12 * 768 * 1024, 2)),
    ("5.4", "the data's gradient as well", _stack(first=3)),
    ("5.4", "multiply-adds for FLOP", _stack(factor=1)),
    ("5.4", "forward only", _stack(1, 1)),
    ("5.4", "accepts anything", _stack(refuse=False)),
    ("5.5", "a multiply-add is one FLOP", (82.6, 4.0)),
    ("5.5", "believes the notes", (330, 1.0)),
    ("5.6", "the notes", (295.3, 206.1, "yes")),
    ("5.6", "swaps them", (206.1, 295.3, "no")),
    ("5.6", "two parts", (295.3, 206.1)),
    ("5.7", "sparse peak", 0.1394),
    ("5.7", "PCIe card", 0.365),
    ("5.7", "percent of the sparse peak", 13.9),
    ("5.7", "70 billion for 70.55", 6 * 70e9 * 15e12 / (6.4e6 * 3600 * 989.4e12)),
    ("5.8", "one GPU", (1.4e12 / 380 / _DAY, 1.4e12 / 380 / 3600, 0.4765)),
    ("5.8", "with recomputation", (20.8, 1_023_392, 0.635)),
    ("5.9", "forgets attention", _palm(scores=0)),
    ("5.9", "causal half", _palm(scores=6)),
    ("5.9", "one chip", _palm(all_chips=False)),
    ("5.10", "the ridge itself", 100),
    ("5.10", "one step too early", 64),
    ("5.10", "one step too late", 256),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("5.1", "the paper's rounded days", (4.2e23, 34)),
    ("5.7", "percent", 27.9),
    ("5.8", "percent", (20.8, 1_023_392, 47.65)),
]
