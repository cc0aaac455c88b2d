"""Answers to chapter 8 that a check must refuse: (exercise, what was thought, answer)."""

import torch


def _clip(norm, at_most=1.0):
    """Scales by limit / norm(part, all_reduce)."""
    return lambda part, limit, all_reduce: (
        part * (limit / norm(part, all_reduce)).clamp(0.0, at_most)
    )


def _root(part, all_reduce):
    return all_reduce(part.square().sum()).sqrt()


def _endless(part, limit, all_reduce):
    for _ in range(10):
        part = all_reduce(part)
    return part


def _marks(up=True, pad=0, by_tensor=False, inverted=False):
    def own_marks(sizes, decays, ranks, rank):
        marks = [mark for size, mark in zip(sizes, decays, strict=True) for _ in range(size)]
        if by_tensor:
            marks = list(decays)
        marks = [int(mark is not inverted) for mark in marks]
        part = -(-len(marks) // ranks) if up else len(marks) // ranks
        if pad is not None:
            marks += (part * ranks - len(marks)) * [pad]
        return marks[rank * part : (rank + 1) * part]

    return own_marks


_GOOD = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 2},
}
_STAGE = {
    "gpt2-1.5b on 8 GPUs, 30 GB": 0,
    "llama2-7b on 8 GPUs, 50 GB": 2,
    "llama2-7b on 8 GPUs, 58 GB": 3,
    "llama2-13b on 16 GPUs, 10 GB": 1,
    "llama1-33b on 32 GPUs, 20 GB": 3,
    "llama2-70b on 8 GPUs, 10 GB": "none",
}
_VERSION = "the loss curve changed with the version, the file did not"
_TINY = "stage 3 of a tiny model: each GPU still has all weights"
_TWO_GB = "2 GB that nobody can explain, the same for any large model in fp32"
_KEYS = {
    _VERSION: "gradient_clipping",
    _TINY: "stage3_param_persistence_threshold",
    "stage 2: the network is idle in backward, busy after it": "overlap_comm",
    _TWO_GB: "reduce_bucket_size",
    "offload: the GPU waits for each copy to the host": "pin_memory",
    "an error: your own optimizer is not on a list": "zero_allow_untested_optimizer",
}
_WHICH = {
    "A": "DDP",
    "B": "ZeroRedundancyOptimizer",
    "C": "ZeRO 2",
    "D": "DDP without no_sync",
    "E": "ZeRO 3",
    "F": "ZeRO 1",
}
_FORWARD = "C: 7B, stage 3, 64 GPUs, out of memory at the end of the forward pass"
_SIXTEEN = "B: 13B, stage 2, 64 GPUs, 16 micro-batches, 30 GB free: waits for messages"
_FIRST = {
    "A: 7B under DDP on 8 GPUs, out of memory in the first update": "stage 1",
    _SIXTEEN: "stage 1",
    _FORWARD: "recompute activations",
    "D: 13B on one GPU, 512 GB of host memory, out of memory in the first update": (
        "offload the optimizer"
    ),
    "E: 70B, stage 3, 64 GPUs, 2,000 tokens each, 40 GB free: waits for messages": (
        "larger micro-batches"
    ),
    "F: 7B, stage 1, one micro-batch: the network is idle until backward has ended": (
        "overlap the messages"
    ),
}
_UNCLIPPED = {key: value for key, value in _GOOD.items() if key != "gradient_clipping"}
_GOOD_BATCH = {k: v for k, v in _GOOD.items() if "micro" not in k and "steps" not in k}
MISTAKES = [
    ("8.1", "gradients of 2 bytes", (608, 368, 128, 1)),
    ("8.1", "cuts the gradients in stage 1", (384, 384, 144, 0.75)),
    ("8.1", "sends the same, as in bf16", (864, 384, 144, 1)),
    ("8.2", "rounded down", (["never", 112, 7], 12, 8000)),
    ("8.2", "states must fit together", ([8, 8, 8], 12, 8000)),
    ("8.2", "one micro-batch", (["never", 112, 8], 1.5, 8000)),
    ("8.2", "stage 2, which does not fit", (["never", 112, 8], 4.5, 8000)),
    ("8.3", "the own norm", _clip(lambda part, _: part.norm())),
    ("8.3", "adds norms", _clip(lambda part, all_reduce: all_reduce(part.norm()))),
    ("8.3", "stretches short gradients", _clip(_root, at_most=None)),
    ("8.3", "forgets the root", _clip(lambda part, all_reduce: _root(part, all_reduce) ** 2)),
    ("8.3", "adds unlike parts", _clip(lambda part, all_reduce: all_reduce(part).norm())),
    ("8.3", "reduces again and again", _endless),
    (
        "8.3",
        "only some ranks reduce",
        lambda p, _, all_reduce: all_reduce(p) if p.sum() > 3.5 else p,
    ),
    ("8.4", "always stage 3", dict.fromkeys(_STAGE, 3)),
    ("8.4", "states and activations only", _STAGE | {"llama2-7b on 8 GPUs, 58 GB": 2}),
    ("8.4", "stage 3 fits all", _STAGE | {"llama2-70b on 8 GPUs, 10 GB": 3}),
    ("8.5", "a bucket is a threshold", _KEYS | {_TINY: "reduce_bucket_size"}),
    ("8.5", "the optimizer changed", _KEYS | {_VERSION: "zero_allow_untested_optimizer"}),
    ("8.6", "rounds down", _marks(up=False)),
    ("8.6", "no padding", _marks(pad=None)),
    ("8.6", "padding decays", _marks(pad=1)),
    ("8.6", "a mark for each tensor", _marks(by_tensor=True)),
    ("8.6", "1 where nothing decays", _marks(inverted=True)),
    ("8.7", "always the highest stage", dict.fromkeys(_FIRST, "stage 3")),
    ("8.7", "more ZeRO for activations", _FIRST | {_FORWARD: "stage 3"}),
    ("8.7", "faster messages, not fewer", _FIRST | {_SIXTEEN: "overlap the messages"}),
    ("8.8", "only AdamW's two numbers", (8 * 13e9, 1.651, 0.206)),
    ("8.8", "one way", (12 * 13e9, 0.825, 0.103)),
    ("8.8", "all GPUs on one slot", (12 * 13e9, 1.651, 1.651)),
    ("8.9", "as given", _GOOD | {"gradient_accumulation_steps": 2}),
    ("8.9", "only the global batch", _GOOD_BATCH),
    ("8.9", "no word on clipping", _UNCLIPPED),
    ("8.9", "stage 3 cuts the weights", _GOOD | {"zero_optimization": {"stage": 3}}),
    ("8.9", "a smaller global batch", _GOOD | {"train_batch_size": 32}),
    ("8.10", "swaps ZeRO 1 and PyTorch's", (_WHICH | {"B": "ZeRO 1", "F": _WHICH["B"]}, 36e6)),
    ("8.10", "without (n-1)/n", (_WHICH, 48e6)),
    ("8.10", "one micro-batch", (_WHICH, 9e6)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("8.6", "a tensor of floats", lambda *given: torch.tensor(_marks()(*given)).float()),
    ("8.10", "a text with its unit", (_WHICH, "36 MB")),
]
