"""Answers to chapter 11 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.chapters.ch11_pipelines.exercises import _CLUSTERS


def _order(warm_up=1, cut=True, reverse=False):
    def one_f_one_b(stage, stages, micro_batches):
        ahead = warm_up * (stages - stage - 1)
        ahead = min(ahead, micro_batches) if cut else ahead
        order = [f"F{i}" for i in range(ahead)]
        for i in range(micro_batches - ahead):
            order += [f"F{ahead + i}", f"B{i}"]
        rest = [f"B{i}" for i in range(max(0, micro_batches - ahead), micro_batches)]
        return order + (rest[::-1] if reverse else rest)

    return one_f_one_b


def _gpipe(stage, stages, micro_batches):
    forward = [f"F{i}" for i in range(micro_batches)]
    return forward + [f"B{i}" for i in reversed(range(micro_batches))]


_FAMILY = {"A": "naive model", "B": "tensor", "C": "data", "D": "pipeline"}
_SAMPLES, _LAYERS = {"A": 2, "B": 2, "C": 1, "D": 2}, {"A": 1, "B": 2, "C": 2, "D": 1}
_NOTES = _FAMILY | {"A": "data", "C": "naive model"}
_SMALL = "64 micro-batches of 1 sequence"
_VERDICTS = {
    "GPipe's order": "too large",
    "two chunks on each stage, interleaved": "too large",
    "ZB-H1": "faster",
    "64 micro-batches of 1 sequence": "faster",
    "recompute each stage before its backward pass": "slower",
    "the shortest update": "ZB-H1",
}
_BEST = dict(zip(_CLUSTERS, ("zb1p", "1f1b", "interleaved", "gpipe"), strict=True))
_SLOW = list(_CLUSTERS)[-1]
_MESSAGE = 2048 * 12288 * 2
_ALL = [f"{kind}{i}" for kind in "FB" for i in range(4)]
_FIRST = ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]

MISTAKES = [
    ("11.2", "chunks fit", _VERDICTS | {"two chunks on each stage, interleaved": "faster"}),
    ("11.2", "small micro-batches first", _VERDICTS | {"the shortest update": _SMALL}),
    ("11.2", "GPipe holds as few", _VERDICTS | {"GPipe's order": "slower"}),
    ("11.2", "only schedules change the bubble", _VERDICTS | {_SMALL: "slower"}),
    ("11.3", "the mean of all", (4.02 / 8, 4.02 / 8, 19 * 4.02 / 8)),
    ("11.3", "no bubble", (0.39, 0.39, 7.14)),
    ("11.3", "the others' pace", (0.39, 0.3, 19 * 0.3)),
    ("11.4", "zero bubble always", dict.fromkeys(_BEST, "zb1p")),
    ("11.4", "slow wires like few micro-batches", _BEST | {_SLOW: "1f1b"}),
    ("11.4", "one is missing", dict(list(_BEST.items())[:3])),
    ("11.5", "the notes on copies", (_NOTES, _SAMPLES, _LAYERS, 16)),
    ("11.5", "gradients of more samples", (_FAMILY, _SAMPLES | {"C": 2}, _LAYERS, 16)),
    ("11.5", "deeper stages send more", (_FAMILY, _SAMPLES, _LAYERS | {"D": 2}, 16)),
    ("11.5", "over the ideal time", (_FAMILY, _SAMPLES, _LAYERS, 19)),
    ("11.6", "GPipe", _gpipe),
    ("11.6", "twice the warm-up", _order(warm_up=2)),
    ("11.6", "more passes than micro-batches", _order(cut=False)),
    ("11.6", "drains in reverse", _order(reverse=True)),
    ("11.8", "the average stage", (11 * 3.375, 67 * 3.375)),
    ("11.8", "all stages slow", (11 * 4.5, 67 * 4.5)),
    ("11.8", "as if the last one were slow", (45, 297)),
    ("11.9", "numbers for bytes", (64 * _MESSAGE, 128 * _MESSAGE, 4)),
    ("11.9", "one direction", (64 * _MESSAGE, 128 * _MESSAGE, 12)),
    ("11.9", "chunks are smaller", (128 * _MESSAGE, 128 * _MESSAGE, 4)),
    ("11.9", "two layers are enough", (128 * _MESSAGE, 256 * _MESSAGE, 6)),
    ("11.10", "as it was", (_FIRST, ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"])),
    ("11.10", "1F1B as it is", (_FIRST, ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"])),
    ("11.10", "GPipe holds all", (_ALL, _ALL)),
    ("11.10", "one is missing", (_ALL, _ALL[:7])),
    ("11.10", "one order only", _ALL),
]

OTHER_FORMS = [("11.3", "rounded", (0.39, 0.3, 6.13))]
