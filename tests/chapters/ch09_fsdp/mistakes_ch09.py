"""Answers to chapter 9 that a check must refuse: (exercise, what was thought, answer)."""

import math


def _flat(up=True, whole=True, refuse=True, each=True):
    def flat_shard(shapes, ranks):
        if refuse and ranks < 1:
            raise ValueError(ranks)
        sizes = [math.prod(shape) for shape in shapes]
        numbers = sum(sizes)
        if not whole:  # every tensor padded by itself
            part = sum(-(-size // ranks) for size in sizes)
            return part, part * ranks - numbers
        part = -(-numbers // max(ranks, 1)) if up else numbers // ranks
        padding = part * ranks - numbers
        return part, padding if each else padding // ranks

    return flat_shard


def _shared(units_of=True, ordered=True):
    def in_two_units(units):
        homes = {}
        for unit, parameters in units.items():
            for name, tensor in parameters.items():
                homes.setdefault(tensor, set()).add(unit if units_of else name)
        found = [
            name
            for parameters in units.values()
            for name, tensor in parameters.items()
            if len(homes[tensor]) > 1
        ]
        return sorted(found) if ordered else found[::-1]

    return in_two_units


_LONG = "llama2-7b, 4 sequences of 4096, nothing recomputed"
_HUGE = "llama2-70b, 1 sequence of 4096, all recomputed"
_CHOICES = {
    "gpt2-1.5b, 8 sequences of 1024, nothing recomputed": "DDP",
    "llama2-13b, 1 sequence of 4096, nothing recomputed": "HYBRID_SHARD",
    _LONG: "none",
    _HUGE: "FULL_SHARD",
}
_SMALL = "65 all-gathers, 33 reduce-scatters, 0.93 GB"
_ONCE = "33 all-gathers, 33 reduce-scatters, 13.48 GB"
_ONE_UNIT = "1 all-gather, 1 reduce-scatter, 13.48 GB"
_USUAL = "65 all-gathers, 33 reduce-scatters, 1.33 GB"
_DID = {
    _SMALL: "no prefetch",
    _ONCE: "no reshard",
    _ONE_UNIT: "layers not wrapped",
    _USUAL: "as advised",
}
_FITS = {
    "64 cards": False,
    "1024 cards": False,
    "sequences of 2048 tokens": False,
    "full recomputation": True,
    "full recomputation, on 8 cards": False,
}
_LAYER = 3_187_703_808
_CUT = 398_491_648
MISTAKES = [
    ("9.1", "each unit twice", (98, 49, 6.07)),
    ("9.1", "forgets the root", (96, 48, 5.902)),
    ("9.1", "fp32 bytes", (97, 49, 12.133)),
    ("9.2", "rounds down", _flat(up=False)),
    ("9.2", "each tensor by itself", _flat(whole=False)),
    ("9.2", "accepts no ranks", _flat(refuse=False)),
    ("9.2", "padding of a rank", _flat(each=False)),
    ("9.3", "computes with its shard", (_LAYER / 64, _LAYER / 64, _CUT)),
    ("9.3", "exactly an eighth", (_LAYER, _LAYER / 64, _LAYER / 8)),
    ("9.3", "cannot be combined", (_LAYER, _LAYER / 64, _LAYER)),
    ("9.4", "FSDP cuts activations", _CHOICES | {_LONG: "FULL_SHARD"}),
    ("9.4", "an eighth of 70B fits", _CHOICES | {_HUGE: "HYBRID_SHARD"}),
    ("9.5", "one unit is no reshard", _DID | {_ONE_UNIT: "no reshard", _ONCE: "no prefetch"}),
    ("9.5", "prefetch the other way round", _DID | {_SMALL: "as advised", _USUAL: "no prefetch"}),
    ("9.6", "a thousand cards help", (_FITS | {"1024 cards": True}, 36.4)),
    ("9.6", "half the tokens, half of all", (_FITS | {"sequences of 2048 tokens": True}, 36.4)),
    ("9.6", "the shards stay", (_FITS, 49.4)),
    ("9.7", "the released vocabulary", (50_257, 19.14, 3)),
    ("9.7", "as advised", (40_478, 13.88, 3)),
    ("9.7", "FULL_SHARD's samples", (40_478, 19.14, 6)),
    ("9.8", "both train", (28, 9152, 28, 4576)),
    ("9.8", "both hold everything", (0, 9152, 28, 9152)),
    ("9.9", "counts names, not units", _shared(units_of=False)),
    ("9.9", "not sorted", _shared(ordered=False)),
    ("9.10", "no root", (3.42, 1.71, 136.9, 3.42)),
    ("9.10", "prefetch the wrong way", (2.760, 4.471, 137.95, 3.42)),
    ("9.12", "one port for each GPU", (9067.5, 5, 26.95, 260, 33)),
    ("9.12", "bf16 both ways", (1511.25, 1, 26.95, 260, 33)),
    ("9.12", "shards of gradients", (2266.875, 2, 0.842, 260, 33)),
    ("9.12", "gathers once", (2266.875, 2, 26.95, 65, 33)),
    ("9.12", "reduces each time", (2266.875, 2, 26.95, 260, 132)),
]

OTHER_FORMS = [
    ("9.7", "another that explains it, and rounded", (40_600, 19.1, 3)),
    ("9.6", "1 and 0", ({key: int(fits) for key, fits in _FITS.items()}, 36.4)),
]
