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


def _choose(ideal=False, refuse=True):
    def fewest_micro_batches(stages, most_bubble):
        if refuse and most_bubble <= 0:
            raise ValueError(most_bubble)
        m = 1
        while m < 10_000 and (stages - 1) / (m + (0 if ideal else stages - 1)) > most_bubble:
            m += 1
        return m

    return fewest_micro_batches


_FAMILY = {"A": "naive model", "B": "tensor", "C": "data", "D": "pipeline"}
_SAMPLES, _LAYERS = {"A": 2, "B": 2, "C": 1, "D": 2}, {"A": 1, "B": 2, "C": 2, "D": 1}
_NOTES = _FAMILY | {"A": "data", "C": "naive model"}
_LESS, _SAME = "held 4, 3, 2, 1", "held 4, 4, 4, 4"
_HELD = {
    _LESS: "1f1b",
    "held 5.5, 4.5, 3.5, 2.5": "interleaved",
    _SAME: "zb1p",
    "held 12, 12, 12, 12": "gpipe",
}
_BEST = dict(zip(_CLUSTERS, ("zb1p", "1f1b", "interleaved", "gpipe"), strict=True))
_SLOW = list(_CLUSTERS)[-1]
_MESSAGE = 2048 * 12288 * 2
_ALL = [f"{kind}{i}" for kind in "FB" for i in range(4)]
_FIRST = ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]

MISTAKES = [
    ("11.1", "total for ideal", (7 / 39, 7 / 39, 7 / 135)),
    ("11.1", "p for p - 1", (8 / 32, 8 / 40, 8 / 136)),
    ("11.1", "chunks multiply", (7 / 32, 7 / 39, 28 / 60)),
    ("11.2", "the notes are right", (_HELD, 4)),
    ("11.2", "two orders swapped", (_HELD | {_LESS: "zb1p", _SAME: "1f1b"}, 7)),
    ("11.2", "all are 1F1B", (dict.fromkeys(_HELD, "1f1b"), 7)),
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
    ("11.7", "of the ideal time", _choose(ideal=True)),
    ("11.7", "accepts a bubble of 0", _choose(refuse=False)),
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

OTHER_FORMS = [("11.3", "rounded", (0.39, 0.3, 6.13)), ("11.2", "a whole float", (_HELD, 7.0))]
