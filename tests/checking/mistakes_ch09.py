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


_LAYER = 3_187_703_808
_CUT = 398_491_648
_XL = 24.9217792
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
    ("9.4", "the notes", ((2023, 9), (2023, 9), (2024, 5), (2024, 5))),
    ("9.4", "paper before the release", ((2023, 4), (2022, 3), (2024, 5), (2024, 6))),
    ("9.4", "the notes, as text", ("2023-09", "2023-09", "2024-05", "2024-05")),
    ("9.5", "one number for both", (0.2142, 0.2142, 121.4)),
    ("9.5", "swapped", (0.2726, 0.2142, 121.4)),
    ("9.5", "the notes' 126", (0.2142, 0.2726, 126)),
    ("9.6", "believes 5 GB", (5, 4.57, 13.7, 219_000)),
    ("9.6", "hours of a week", (10.74, 19.8, 59.5, 50_400)),
    ("9.6", "one GPU", (10.74, 4.57, 13.7, 1460)),
    ("9.7", "the paper's size", (762_000_000, _XL, _XL / 2, 18.69)),
    ("9.7", "gradients forgotten", (774_030_080, 18.69, 9.35, 12.46)),
    ("9.7", "SGD without momentum", (774_030_080, _XL, _XL / 2, 12.46)),
    ("9.8", "both train", (28, 9152, 28, 4576)),
    ("9.8", "both hold everything", (0, 9152, 28, 9152)),
    ("9.8", "both hold shards", (0, 4576, 28, 4576)),
    ("9.9", "counts names, not units", _shared(units_of=False)),
    ("9.9", "not sorted", _shared(ordered=False)),
    ("9.10", "no root", (3.42, 1.71, 136.9, 3.42)),
    ("9.10", "a root in the buffers", (4.471, 2.760, 137.95, 4.471)),
    ("9.10", "prefetch the wrong way", (2.760, 4.471, 137.95, 3.42)),
]
