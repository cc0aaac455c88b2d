"""Answers to chapter 4 that a check must refuse: (exercise, what was thought, answer)."""

_SBH = 2048 * 2 * 12288
_SCORES = 5 * 96 * 2048**2 * 2


def _layer(masks=2, scores=5, plain_scores=2, power=2):
    def layer_bytes(sequence, batch, hidden, heads, flash, dropout):
        sbh, pairs = sequence * batch * hidden, heads * sequence**power * batch
        kept = 0 if flash else pairs * (scores if dropout else plain_scores)
        return 32 * sbh + (masks * sbh if dropout else 0) + kept

    return layer_bytes


def _root(layers, input_bytes, layer_bytes):
    return round(layers**0.5)


def _one(layers, input_bytes, layer_bytes):
    return 1


_GROUPS = "8 groups of 10 layers checkpointed"
_COUNTED = {
    "each of 80 layers checkpointed": [160, 80],
    _GROUPS: [160, 8],
    "every second layer checkpointed": [120, 40],
    "2 groups of 5 layers checkpointed, 70 layers not": [90, 2],
}
_MATRICES = "each of two GPUs has half of every matrix, without sequence parallelism"
_BOTH = {
    "4096 tokens": True,
    "each of two GPUs has 40 layers": True,
    "each of two GPUs has half of the tokens": True,
    _MATRICES: False,
    "an MLP with GELU, 4h wide": False,
    "segments of two layers": False,
}
_FIRST = {
    "A": "micro-batch 1",
    "B": "flash attention",
    "C": "recompute",
    "D": "more GPUs",
    "E": "micro-batch 1",
    "F": "flash attention",
}

MISTAKES = [
    ("4.1", "keeps 34 in full recomputation", (_SBH * 34 + _SCORES, _SBH * 34, _SBH * 34)),
    ("4.1", "forgets the scores", (_SBH * 34, _SBH * 34, _SBH * 2)),
    ("4.2", "two tensors of SwiGLU", (687.2, 644.2, 569.1)),
    ("4.2", "queries an eighth too", (687.2, 944.9, 832.1)),
    ("4.3", "the notes", {**_COUNTED, "each of 80 layers checkpointed": [3320, 80]}),
    ("4.3", "counts only the second run", {k: [n - 80, i] for k, (n, i) in _COUNTED.items()}),
    ("4.3", "an input for each layer", {**_COUNTED, _GROUPS: [160, 80]}),
    ("4.4", "half of all is half of each", {**_BOTH, _MATRICES: True}),
    ("4.4", "looks at the second number", {**_BOTH, "segments of two layers": True}),
    ("4.5", "masks of two bytes", _layer(masks=4)),
    ("4.5", "keeps all three without dropout", _layer(plain_scores=5)),
    ("4.5", "scores grow linearly", _layer(power=1)),
    ("4.7", "always the square root", _root),
    ("4.7", "always one", _one),
    ("4.8", "leaves no room for gaps", {**_FIRST, "E": "nothing"}),
    ("4.8", "recomputes at once", {**_FIRST, "A": "recompute"}),
    ("4.8", "makes states smaller", {**_FIRST, "D": "micro-batch 1"}),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("4.2", "with their unit", ["687 GB", "945 GB", "0.870 TB"]),
    ("4.3", "tuples", {key: tuple(pair) for key, pair in _COUNTED.items()}),
]
