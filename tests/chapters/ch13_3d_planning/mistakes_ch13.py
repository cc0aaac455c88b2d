"""Answers to chapter 13 that a check must refuse: (exercise, what was thought, answer)."""

from course_lib.theory.inputs.layout import Layout


def _layouts(
    *, heads=True, equal=True, whole=True, shared=True, each=4, alone=False, whole_bytes=4, slack=0
):
    def layouts(gpus, layers, kv_heads, batch, parameters, room):
        found = []
        for tp, pp in ((tp, pp) for tp in (1, 2, 4, 8) for pp in range(1, layers + 1)):
            dp, rest = divmod(gpus, tp * pp)
            if not dp or (heads and kv_heads % tp) or (equal and layers % pp) or (whole and rest):
                continue
            if (shared and batch % dp) or ((alone or pp > 1) and batch // dp < each * pp):
                continue
            bytes_each = (whole_bytes + (16 - whole_bytes) / dp) * parameters / (tp * pp)
            if bytes_each + slack <= room:
                found.append((tp, pp, dp))
        return found

    return layouts


_LARGER = "a model twice as large"
_MICRO = {
    "as it is": 129,
    "gradients in bf16": 65,
    "tp 8": 129,
    "cp 2": 258,
    "two sequences in a micro-batch": 65,
    _LARGER: 129,
    "full recomputation": 97,
}
_SUMMED = "a gradient is summed over 768 GPUs"
_TWICE = "twice the nodes, dp 16, the same batch: half of the time"
_RIGHT = {
    "no GPU is left over": True,
    "all stages have equally many layers": False,
    "all replicas get equally many sequences": False,
    "ranks 0 and 8 exchange gradients": True,
    "rank 64 gets the output of rank 0": True,
    _SUMMED: False,
    "a GPU keeps about 1/96 of the weights, 1/768 of AdamW's states": True,
    _TWICE: False,
}
_SP = {"sequence_parallel": True}
_DEEP = Layout(tp=8, pp=16, micro_batch=2, accumulation=128, **_SP)
_FITTING = Layout(tp=8, pp=2, dp=8, accumulation=32, zero_stage=1, **_SP)
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
    ("13.2", "every stage holds as much", (54.3, 54.3, _MOVED)),
    ("13.2", "a micro-batch for each of 16", (108.7, 6.8, _MOVED)),
    ("13.2", "one layer is enough", (54.3, 6.8, (9, 10, 10, 10, 10, 10, 10, 11))),
    ("13.2", "all to the last", (54.3, 6.8, (8, 9, 9, 9, 10, 10, 10, 15))),
    ("13.2", "a layer is lost", (54.3, 6.8, (8, 9, 10, 10, 10, 10, 11, 11))),
    ("13.2", "a stage without layers", (54.3, 6.8, (0, 11, 11, 11, 11, 12, 12, 12))),
    ("13.3", "any tp up to 8", _layouts(heads=False)),
    ("13.3", "stages of any length", _layouts(equal=False)),
    ("13.3", "a remainder of GPUs", _layouts(whole=False)),
    ("13.3", "any dp", _layouts(shared=False)),
    ("13.3", "one micro-batch for a stage", _layouts(each=1)),
    ("13.3", "four for a stage, even of one", _layouts(alone=True)),
    ("13.3", "ZeRO-1 cuts all 16 bytes", _layouts(whole_bytes=0)),
    ("13.3", "no ZeRO", _layouts(whole_bytes=16)),
    ("13.3", "less than the room", _layouts(slack=1)),
    ("13.3", "falling order", lambda *args: _layouts()(*args)[::-1]),
    ("13.4", "ZeRO-2 always helps", _CHANGES | {_ONCE: "fit"}),
    ("13.4", "recomputation always helps", _CHANGES | {"selective recomputation": "slower"}),
    ("13.4", "recomputation is free", _CHANGES | {"full recomputation": "fit"}),
    ("13.4", "nothing fits", dict.fromkeys(_CHANGES, "too large")),
    ("13.5", "forward only", (0.00708, 0.1369, _MICRO)),
    ("13.5", "sent once", (0.02125, 0.0685, _MICRO)),
    ("13.5", "rounded down", (0.02125, 0.1369, {k: n - 1 for k, n in _MICRO.items()})),
    ("13.5", "tp cuts the gradients only", (0.02125, 0.1369, _MICRO | {"tp 8": 17})),
    ("13.5", "cp like tp", (0.02125, 0.1369, _MICRO | {"cp 2": 129})),
    ("13.5", "larger models send more", (0.02125, 0.1369, _MICRO | {_LARGER: 258})),
    ("13.5", "recomputation is free", (0.02125, 0.1369, _MICRO | {"full recomputation": 129})),
    ("13.6", "recompute last, in any case", _REMEDIES | {"Ann": "no recomputation"}),
    ("13.6", "fewer stages against the bubble", _REMEDIES | {"Ann": "fewer stages"}),
    ("13.6", "tp because it shows", _REMEDIES | {"Bo": "less tp"}),
    ("13.6", "everybody the same", dict.fromkeys(_REMEDIES, "less tp")),
    ("13.7", "all false", dict.fromkeys(_RIGHT, False)),
    ("13.7", "all true", dict.fromkeys(_RIGHT, True)),
    ("13.7", "everybody exchanges", _RIGHT | {_SUMMED: True}),
    ("13.7", "dp is outermost", _RIGHT | {"ranks 0 and 8 exchange gradients": False}),
    ("13.7", "GPUs are all that counts", _RIGHT | {_TWICE: True}),
    ("13.10", "pure dp", (Layout(dp=128, accumulation=2, zero_stage=1), _HIDES, 1.1)),
    ("13.10", "no ZeRO", (Layout(tp=8, dp=16, accumulation=16, **_SP), _HIDES, 1.1)),
    ("13.10", "tp over two nodes", (Layout(tp=16, dp=8, accumulation=32), _HIDES, 1.1)),
    ("13.10", "as many stages as possible", (_DEEP, _HIDES, 1.3)),
    ("13.10", "another batch", (Layout(tp=8, dp=16, zero_stage=2, **_SP), _HIDES, 1.1)),
    ("13.10", "a dict", ({"tp": 8, "dp": 16}, _HIDES, 1.1)),
    ("13.10", "no assumption flipped", (_FITTING, {"tp": 0.0}, 1.137)),
    ("13.10", "an axis that is not there", (_FITTING, {"fsdp": 0.5}, 1.091)),
    ("13.10", "in per cent", (_FITTING, {"tp": 50}, 1.091)),
    ("13.10", "the fastest of before", (_FITTING, _HIDES, 1.137)),
    ("13.11", "one way only", (_EACH // 2, _NODE, 8, 128, 1.112)),
    ("13.11", "8 bits there and back", (_EACH, _NODE * 2 // 3, 8, 128, 1.112)),
    ("13.11", "a copy for each expert in 8 bits", (_EACH, _NODE * 2, 8, 128, 1.112)),
    ("13.11", "the other way round", (_EACH, _NODE, 128, 8, 1.112)),
    ("13.11", "the paper's ep in either", (_EACH, _NODE, 64, 64, 1.0)),
    ("13.11", "the ratio upside down", (_EACH, _NODE, 8, 128, 0.899)),
]
OTHER_FORMS = [
    ("13.5", "rounded", [0.0213, 0.137, _MICRO]),
    ("13.2", "other layers, rounded", [54.4, 6.79, [8, 9, 9, 10, 11, 11, 11, 11]]),
    ("13.1", "as floats", (1024.0, 64.0, 4.0, 256.0)),
]
