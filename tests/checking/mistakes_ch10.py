"""Answers to chapter 10 that a check must refuse: (exercise, what was thought, answer)."""

import math


def _rows(fused=False, copies=True, refuse=True, width_once=True):
    def my_rows(heads, kv_heads, width, tp, rank):
        if refuse and heads % tp:
            raise ValueError(heads)
        if fused:  # the whole matrix in one piece
            rows = (heads + 2 * kv_heads) * width
            return list(range(rank * rows // tp, (rank + 1) * rows // tp))
        width = width if width_once else 1
        queries, shared = heads // tp * width, max(1, kv_heads // tp) * width
        place = rank // max(1, tp // kv_heads) if copies else rank
        keys = heads * width + place * shared
        starts = ((rank * queries, queries), (keys, shared), (keys + kv_heads * width, shared))
        return [row for start, count in starts for row in range(start, start + count)]

    return my_rows


def _bias_on_each_rank(inputs, weights, bias):
    return sum(x * w + bias for x, w in zip(inputs, weights, strict=True))


def _bias_on_rank_0_lost(inputs, weights, bias):
    return sum(x * w for x, w in zip(inputs, weights, strict=True))


def _no_maximum(parts, label):
    scores = [score for part in parts for score in part]
    return math.log(sum(min(math.exp(min(score, 700)), 1e300) for score in scores)) - scores[label]


def _own_maximum(parts, label):
    total = sum(sum(math.exp(score - max(part)) for score in part) for part in parts)
    scores = [score for part in parts for score in part]
    return math.log(total) - (scores[label] - max(scores))


def _first_rank_only(parts, label):
    scores = [score for part in parts for score in part]
    top = max(scores)
    total = sum(math.exp(score - top) for score in scores)
    return math.log(total) - (parts[0][label % len(parts[0])] - top)


_LARGEST = {"gpt2-1.5b": 5, "llama1-33b": 4, "llama2-13b": 8, "llama2-70b": 16}
_OWN_GRADIENT = "Z (20, 7) and (20, 7), gradient (1, 3) and (-6, 12)"
_OWN_RESULT = "Z (8, 1) and (13, 7), gradient (-5, 15) and (-5, 15)"
_DOUBLE = "Z (20, 7) and (20, 7), gradient (-10, 30) and (-10, 30)"
_READ = {
    _OWN_GRADIENT: "no f",
    "Z (21, 8) and (21, 8), gradient (-5, 15) and (-5, 15)": "bias before the sum",
    _OWN_RESULT: "no g",
    _DOUBLE: "g sums in the backward pass as well",
}
_ALL = (
    "layers on four GPUs, one works while three wait",
    "each matrix cut over the GPUs of a server",
    "the embedding cut by words",
    "norms cut along the sequence",
)
MISTAKES = [
    ("10.1", "numbers for bytes", (25_165_824, 176_160_768, 384)),
    ("10.1", "two all-reduces", (50_331_648, 176_160_768, 192)),
    ("10.1", "size for sent", (50_331_648, 201_326_592, 384)),
    ("10.2", "any number goes", (dict.fromkeys(_LARGEST, 16), 2)),
    ("10.2", "heads only", (_LARGEST | {"llama1-33b": 13}, 2)),
    ("10.2", "heads only, 13B", (_LARGEST | {"llama2-13b": 10}, 2)),
    ("10.2", "never a copy", (_LARGEST | {"llama2-70b": 8}, 1)),
    ("10.2", "copies the other way round", (_LARGEST, 8)),
    ("10.3", "the notes' reasons", ("memory", "memory", "passes", 585.1, 5266.3)),
    ("10.3", "t for t - 1", ("columns", "bytes", "passes", 576.0, 4608.0)),
    ("10.3", "the notes' formula", ("columns", "bytes", "passes", 384.0, 3072.0)),
    ("10.3", "query, key and value", ("columns", "bytes", "matrices", 585.1, 5266.3)),
    ("10.4", "the server's size", (8, 8, 8, 5)),
    ("10.4", "no latency", (8, 4, 4, 5)),
    ("10.4", "both ways", (8, 4, 2, 9)),
    ("10.4", "rounded up", (8, 4, 2, 6)),
    ("10.5", "f and g swapped", _READ | {_OWN_GRADIENT: "no g", _OWN_RESULT: "no f"}),
    ("10.5", "always f", dict.fromkeys(_READ, "no f")),
    ("10.5", "the bias doubles all", _READ | {_DOUBLE: "bias before the sum"}),
    ("10.6", "in one piece", _rows(fused=True)),
    ("10.6", "no copies", _rows(copies=False)),
    ("10.6", "forgets the width", _rows(width_once=False)),
    ("10.6", "accepts anything", _rows(refuse=False)),
    ("10.7", "as given", _bias_on_each_rank),
    ("10.7", "no bias at all", _bias_on_rank_0_lost),
    ("10.8", "layers only", (48, 72, 48)),
    ("10.8", "everything twice", (53, 106, 50)),
    ("10.8", "the loss gathers as well", (53, 77, 53)),
    ("10.9", "no maximum", _no_maximum),
    ("10.9", "each rank's own maximum", _own_maximum),
    ("10.9", "the label on the first rank", _first_rank_only),
    ("10.10", "all of it", dict.fromkeys(_ALL, True)),
    ("10.10", "cut matrices", dict(zip(_ALL, (True, True, False, False), strict=True))),
    ("10.14", "each product once", (78.7, 3.58, "H800")),
    ("10.14", "the arithmetic alone", (57.5, 2.5, "H800")),
    ("10.14", "the link decides", (57.5, 3.58, "H100")),
]

OTHER_FORMS = [("10.4", "as floats", (8.0, 4.0, 2.0, 5.0))]
