"""Answers to chapter 3 that a check must refuse: (exercise, what was thought, answer)."""


def _per_parameter(master=True, buffer=True, refuse=True):
    """The right function of exercise 3.4, less what is switched off."""

    def bytes_per_parameter(weights, gradients, fp32_buffer=False):
        size = {"fp32": 4, "bf16": 2}
        if refuse and weights not in size:
            raise ValueError(weights)
        copy = 4 if weights == "bf16" or not master else 0
        extra = 4 if fp32_buffer and (gradients == "bf16" or not buffer) else 0
        return size.get(weights, 2) + size[gradients] + copy + extra + 8

    return bytes_per_parameter


_ONE = "the state is one number per parameter, and takes as much as the weights"
_TWO = "the state is two numbers per parameter, and takes as much as the weights"
_HALF = "the state takes half of the weights"
_TRUE_OF = {
    _ONE: "SGD with momentum, fp32",
    _TWO: "8-bit AdamW, bf16",
    _HALF: "8-bit AdamW, fp32",
    "the state takes four times the weights": "AdamW, bf16",
}
_SIZES = {"1,028 GB": 16, "1,242 GB": 18, "1,285 GB": 20, "690 GB": 10}
_MEANT = {"1,028 GB": True, "1,242 GB": False, "1,285 GB": True, "690 GB": False}
_WITH_MASTER = "bf16 weights and gradients, with a master copy"
_FITS = {
    _WITH_MASTER: False,
    "bf16 weights, gradients and AdamW, without a master copy": True,
    "half the sequence": False,
    "no intermediate results at all": False,
    "SGD with momentum": True,
    "8-bit AdamW": True,
}
_LOSS_OF_B = "B: a loss that writes its gradient over the logits"
_HELPS = {
    "A: half the micro-batch": True,
    "A: fused=True in AdamW": False,
    "A: a loss that writes its gradient over the logits": True,
    "A: 8-bit AdamW": True,
    "B: half the micro-batch": False,
    "B: fused=True in AdamW": True,
    _LOSS_OF_B: False,
    "B: 8-bit AdamW": True,
}

_FIRST = {
    "A": "expandable segments",
    "B": "detach",
    "C": "micro-batch",
    "D": "divide",
    "E": "fused",
    "F": "recompute",
}

MISTAKES = [
    ("3.1", "takes 12 bytes for Adam", (0, _SIZES, _MEANT)),
    ("3.1", "all mean GB", (280, _SIZES, dict.fromkeys(_SIZES, False))),
    ("3.1", "18 twice", (280, {**_SIZES, "1,285 GB": 18}, _MEANT)),
    ("3.3", "plain SGD keeps the weights", {**_TRUE_OF, _ONE: "SGD, fp32"}),
    ("3.3", "Adam in fp32 has as much", {**_TRUE_OF, _TWO: "AdamW, fp32"}),
    ("3.4", "master copy for fp32 weights", _per_parameter(master=False)),
    ("3.4", "two fp32 gradients", _per_parameter(buffer=False)),
    ("3.4", "accepts anything", _per_parameter(refuse=False)),
    ("3.6", "bf16 halves everything", {**_FITS, _WITH_MASTER: True}),
    ("3.6", "forgets the overhead", {**_FITS, "no intermediate results at all": True}),
    ("3.7", "compares GB with the data sheet", (141 - 148.35 - 1, "no")),
    ("3.7", "forgets the allocator", (140.4 - 120.14 - 1, "yes")),
    ("3.10", "the micro-batch always helps", {**_HELPS, "B: half the micro-batch": True}),
    ("3.10", "states count at the update only", {**_HELPS, "A: 8-bit AdamW": False}),
    ("3.14", "a smaller batch always helps", {**_FIRST, "D": "micro-batch"}),
    ("3.14", "states count, buffers do not", {**_FIRST, "E": "divide"}),
    ("3.14", "recomputes before it accumulates", {**_FIRST, "C": "recompute"}),
    ("3.13", "1,999 are enough to double", (65_536, 7999)),
    ("3.13", "counts the batches without update", (32_768, 8003)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    (
        "3.1",
        "the exact model, floats and 1 and 0",
        (
            "0.2759 TB",
            {key: float(value) for key, value in _SIZES.items()},
            {key: int(value) for key, value in _MEANT.items()},
        ),
    ),
    ("3.6", "1 and 0", {key: int(value) for key, value in _FITS.items()}),
    ("3.7", "rounded", (1.2, "Yes")),
    ("3.7", "with its unit", ("1.24 GiB", "yes")),
    ("3.13", "a power", (2**15, 7_999)),
]
