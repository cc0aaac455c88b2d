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


def _length(count=None, squared=False):
    def gradient_length(cut, whole):
        squares = sum(g * g for part in cut for g in part)
        squares += sum(g * g for part in whole[:count] for g in part)
        return squares if squared else math.sqrt(squares)

    return gradient_length


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
_SHARES = "98 all-gathers, 98 reduce-scatters"
_LOGS = {
    "149 all-reduces": "an f for each of q, k and v",
    "101 all-reduces": "as it should be",
    "77 all-reduces": "no f before the MLPs",
    "98 all-reduces, 1 all-gather": "the logits are gathered",
    f"3 all-reduces, {_SHARES}": "the gradients of norms are not summed",
    f"4 all-reduces, {_SHARES}": "as it should be",
}
MISTAKES = [
    ("10.1", "numbers for bytes", (176_160_768, 396_361_728, 4608, "data")),
    ("10.1", "the whole layer's gradients", (352_321_536, 6_341_787_648, 36_864, "data")),
    ("10.1", "the larger one is the slower", (352_321_536, 792_723_456, 4608, "tensor")),
    ("10.2", "heads only", (_LARGEST | {"llama1-33b": 13}, 2)),
    ("10.2", "never a copy", (_LARGEST | {"llama2-70b": 8}, 1)),
    ("10.2", "copies the other way round", (_LARGEST, 8)),
    ("10.3", "half of training", (2633.1, 4681.1, 10532.6, 12)),
    ("10.3", "recomputation is for free", (3510.9, 5266.3, 10532.6, 12)),
    ("10.3", "smaller messages, less work", (3510.9, 4681.1, 2633.1, 12)),
    ("10.3", "training's reach", (3510.9, 4681.1, 10532.6, 17)),
    ("10.4", "no latency", (8, 4, 4, 5)),
    ("10.4", "both ways", (8, 4, 2, 9)),
    ("10.4", "rounded up", (8, 4, 2, 6)),
    ("10.5", "f and g swapped", _READ | {_OWN_GRADIENT: "no g", _OWN_RESULT: "no f"}),
    ("10.5", "the bias doubles all", _READ | {_DOUBLE: "bias before the sum"}),
    ("10.6", "in one piece", _rows(fused=True)),
    ("10.6", "no copies", _rows(copies=False)),
    ("10.6", "forgets the width", _rows(width_once=False)),
    ("10.6", "accepts anything", _rows(refuse=False)),
    ("10.7", "as given", _length()),
    ("10.7", "what is whole is forgotten", _length(count=0)),
    ("10.7", "without the root", _length(count=1, squared=True)),
    ("10.9", "no maximum", _no_maximum),
    ("10.9", "each rank's own maximum", _own_maximum),
    ("10.9", "the label on the first rank", _first_rank_only),
    ("10.10", "more is recomputation", _LOGS | {"149 all-reduces": "as it should be"}),
    (
        "10.10",
        "few messages are a fault",
        _LOGS | {f"4 all-reduces, {_SHARES}": "no f before the MLPs"},
    ),
    ("10.10", "the norms send nothing", _LOGS | {f"3 all-reduces, {_SHARES}": "as it should be"}),
    ("10.14", "each product once", (78.7, 3.58, "H800")),
    ("10.14", "the arithmetic alone", (57.5, 2.5, "H800")),
    ("10.14", "the link decides", (57.5, 3.58, "H100")),
]

OTHER_FORMS = [("10.4", "as floats", (8.0, 4.0, 2.0, 5.0))]
