"""Answers to chapter 13 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.theory.inputs.layout import Layout


def _group(inner="tp"):
    def group(rank, axis, dp, tp, pp):
        sizes = {"tp": tp, "dp": dp, "pp": pp}
        order = {"tp": ("tp", "dp", "pp"), "dp": ("dp", "tp", "pp"), "pp": ("pp", "dp", "tp")}
        stride = 1
        for name in order[inner]:
            if name == axis:
                break
            stride *= sizes[name]
        first = rank - rank // stride % sizes[axis] * stride
        return [first + i * stride for i in range(sizes[axis])]

    return group


def _neighbours(rank, axis, dp, tp, pp):
    size = {"tp": tp, "dp": dp, "pp": pp}[axis]
    return [rank // size * size + i for i in range(size)]


_FALSE = {
    "every LLaMA-2 has 80 layers": False,
    "80 stages of one layer keep 160 times one layer under 1F1B": False,
    "a card of 200 Gb/s sends 25 GB/s one way, less than PCIe4 x16": False,
    "a pipeline is fed with mini-batches; micro-batch is another thing": False,
    "80 micro-batches of one layer are as large as one of 80 layers": False,
}
_SP = {"sequence_parallel": True}
_DEEP = Layout(tp=8, pp=16, accumulation=256, **_SP)
_STANDARD = Layout(tp=8, pp=4, dp=4, accumulation=64, zero_stage=1, **_SP)
_HIDES = {"tp": 0.5, "dp": 0.8}

_MOVED = (8, 9, 10, 10, 10, 11, 11, 11)
_ONCE = "ZeRO-2, one reduction in each update"
_CHANGES = {
    "gradients in bf16": "fit",
    _ONCE: "too large",
    "ZeRO-2, a reduction after each micro-batch": "slower",
    "full recomputation": "slower",
    "selective recomputation": "too large",
    "twice the micro-batches on half the replicas": "too large",
}
_REMEDIES = {"Ann": "smaller micro-batches", "Bo": "no recomputation", "Cy": "less tp"}

_EACH, _NODE = 939_524_096, 352_321_536  # bytes of 13.11

MISTAKES = [
    ("13.1", "believes the notes", (2048 * 32, 2048, 2048, 2048)),
    ("13.1", "forgets cp", (2048, 64, 4, 256)),
    ("13.1", "gradients go around among dp only", (1024, 32, 4, 256)),
    ("13.1", "experts like all others", (1024, 64, 64, 256)),
    ("13.1", "norms like all others", (1024, 64, 4, 64)),
    ("13.2", "every stage holds as much", (54.3, 54.3, _MOVED)),
    ("13.2", "a micro-batch for each of 16", (108.7, 6.8, _MOVED)),
    ("13.2", "one layer is enough", (54.3, 6.8, (9, 10, 10, 10, 10, 10, 10, 11))),
    ("13.2", "all to the last", (54.3, 6.8, (8, 9, 9, 9, 10, 10, 10, 15))),
    ("13.2", "a layer is lost", (54.3, 6.8, (8, 9, 10, 10, 10, 10, 11, 11))),
    ("13.2", "a stage without layers", (54.3, 6.8, (0, 11, 11, 11, 11, 12, 12, 12))),
    ("13.3", "as many keys as queries", (973_094_912, 68_976_648_192 - 80 * 973_094_912)),
    ("13.3", "two matrices in the MLP", (620_773_376, 68_976_648_192 - 80 * 620_773_376)),
    ("13.3", "no norms", (855_638_016, 525_606_912)),
    ("13.4", "ZeRO-2 always helps", _CHANGES | {_ONCE: "fit"}),
    ("13.4", "recomputation always helps", _CHANGES | {"selective recomputation": "slower"}),
    ("13.4", "recomputation is free", _CHANGES | {"full recomputation": "fit"}),
    ("13.4", "nothing fits", dict.fromkeys(_CHANGES, "too large")),
    ("13.5", "the notes' layer", (1.96608e14, 1.19, 0.25, 0.21, 0.0026)),
    ("13.5", "the fp16 peak", (1.682e14, 0.51, 0.2139, 0.42, 0.0052)),
    ("13.5", "forward only", (5.607e13, 0.339, 0.2139, 0.63, 0.0079)),
    ("13.5", "sent once", (1.682e14, 1.018, 0.107, 0.105, 0.0013)),
    ("13.5", "an exchange for each of the 80", (1.682e14, 1.018, 0.2139, 0.21, 0.21)),
    ("13.6", "recompute last, in any case", _REMEDIES | {"Ann": "no recomputation"}),
    ("13.6", "fewer stages against the bubble", _REMEDIES | {"Ann": "fewer stages"}),
    ("13.6", "tp because it shows", _REMEDIES | {"Bo": "less tp"}),
    ("13.6", "everybody the same", dict.fromkeys(_REMEDIES, "less tp")),
    ("13.7", "all false", _FALSE),
    ("13.7", "all true", dict.fromkeys(_FALSE, True)),
    ("13.8", "dp innermost", _group("dp")),
    ("13.8", "pp innermost", _group("pp")),
    ("13.8", "every group is of neighbours", _neighbours),
    ("13.9", "outermost first", (("tp", "pp", "dp"), 2.357)),
    ("13.9", "the ratio of the links", (("dp", "pp", "tp"), 9.0)),
    ("13.9", "Megatron-LM's order", (("tp", "dp", "pp"), 2.357)),
    ("13.10", "pure dp", (Layout(dp=128, accumulation=2, zero_stage=1), _HIDES, 1.1)),
    ("13.10", "no ZeRO", (Layout(tp=8, dp=16, accumulation=16, **_SP), _HIDES, 1.1)),
    ("13.10", "tp over two nodes", (Layout(tp=16, dp=8, accumulation=32), _HIDES, 1.1)),
    ("13.10", "as many stages as possible", (_DEEP, _HIDES, 1.3)),
    ("13.10", "another batch", (Layout(tp=8, dp=16, zero_stage=2, **_SP), _HIDES, 1.1)),
    ("13.10", "a dict", ({"tp": 8, "dp": 16}, _HIDES, 1.1)),
    ("13.10", "no assumption flipped", (_STANDARD, {"tp": 0.0}, 1.293)),
    ("13.10", "an axis that is not there", (_STANDARD, {"fsdp": 0.5}, 1.12)),
    ("13.10", "in per cent", (_STANDARD, {"tp": 50}, 1.12)),
    ("13.10", "the fastest of before", (_STANDARD, _HIDES, 1.178)),
    ("13.11", "one way only", (_EACH // 2, _NODE, 1, 64, 1.222)),
    ("13.11", "8 bits there and back", (_EACH, _NODE * 2 // 3, 1, 64, 1.222)),
    ("13.11", "a copy for each expert in 8 bits", (_EACH, _NODE * 2, 1, 64, 1.222)),
    ("13.11", "one node", (_EACH, _NODE // 4, 1, 64, 1.222)),
    ("13.11", "the other way round", (_EACH, _NODE, 64, 1, 1.222)),
    ("13.11", "the paper's ep in either", (_EACH, _NODE, 64, 64, 1.0)),
    ("13.11", "the ratio upside down", (_EACH, _NODE, 1, 64, 0.818)),
]

OTHER_FORMS = [
    ("13.2", "other layers, rounded", [54.4, 6.79, [8, 9, 9, 10, 11, 11, 11, 11]]),
    ("13.1", "as floats", (1024.0, 64.0, 4.0, 256.0)),
]
