"""Answers to chapter 11 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.checking.ch11 import _STATEMENTS


def _order(warm_up=1, cut=True, reverse=False):
    def one_f_one_b(stage, stages, micro_batches):
        ahead = stages - stage - 1 if warm_up else 0
        ahead = ahead * max(warm_up, 1)
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


def _choose(ideal=False, refuse=True, extra=0):
    def fewest_micro_batches(stages, most_bubble):
        if refuse and most_bubble <= 0:
            raise ValueError(most_bubble)
        m = 1
        while m < 10_000 and (stages - 1) / (m + (0 if ideal else stages - 1)) > most_bubble:
            m += 1
        return m + extra

    return fewest_micro_batches


_NOTES = {**_STATEMENTS, "each worker holds a full copy of the model": "naive model"}
_COMBINED = {
    **_STATEMENTS,
    "each device holds some of the layers, and all work, on different micro-batches": "data",
}
_DEPRECATED = {**_STATEMENTS, "has been replaced by pipelines": "tensor"}
_MESSAGE = 2048 * 12288 * 2

MISTAKES = [
    ("11.1", "total for ideal", (7 / 39, 7 / 39, 7 / 135)),
    ("11.1", "p for p - 1", (8 / 32, 8 / 40, 8 / 136)),
    ("11.1", "chunks multiply", (7 / 32, 7 / 39, 28 / 60)),
    ("11.2", "the notes", (15, 15, 15)),
    ("11.2", "all stages alike", (8, 8, 32)),
    ("11.2", "GPipe is 1F1B", (8, 1, 8)),
    ("11.3", "it is full", (0, 1, 80)),
    ("11.3", "ten times the stages", (0.9875, 80 / 159, 800)),
    ("11.3", "one too few", (0.9875, 80 / 159, 710)),
    ("11.4", "the notes", (160, 160, 160 * 34 * 4096 * 8192)),
    ("11.4", "grows with the stages", (8, 80, 80 * 34 * 4096 * 8192)),
    ("11.4", "micro-batch 8", (80, 80, 80 * 34 * 4096 * 8 * 8192)),
    ("11.5", "the notes on copies", _NOTES),
    ("11.5", "pipelines need copies", _COMBINED),
    ("11.5", "tensor parallelism is outdated", _DEPRECATED),
    ("11.5", "one is missing", dict(list(_STATEMENTS.items())[:4])),
    ("11.6", "GPipe", _gpipe),
    ("11.6", "no warm-up", _order(warm_up=0)),
    ("11.6", "twice the warm-up", _order(warm_up=2)),
    ("11.6", "more passes than micro-batches", _order(cut=False)),
    ("11.6", "drains in reverse", _order(reverse=True)),
    ("11.7", "of the ideal time", _choose(ideal=True)),
    ("11.7", "accepts a bubble of 0", _choose(refuse=False)),
    ("11.7", "one too many", _choose(extra=1)),
    ("11.8", "the average stage", (11 * 3.375, 67 * 3.375)),
    ("11.8", "all stages slow", (11 * 4.5, 67 * 4.5)),
    ("11.8", "even stages", (33, 201)),
    ("11.9", "numbers for bytes", (2048 * 12288, 128 * 2048 * 12288, 256 * 2048 * 12288)),
    ("11.9", "one direction", (_MESSAGE, 64 * _MESSAGE, 128 * _MESSAGE)),
    ("11.9", "chunks are smaller", (_MESSAGE, 128 * _MESSAGE, 128 * _MESSAGE)),
    ("11.10", "as it was", ["F0", "B0", "F1", "B1"]),
    ("11.10", "backward first", ["F0", "F1", "B1", "B0"]),
    ("11.10", "one is missing", ["F0", "F1", "B0"]),
]
