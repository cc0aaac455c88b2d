"""Answers to chapter 9 that a check must refuse: (exercise, what was thought, answer)."""


def _strategy(hides=True, rest=True, first=True, at_least=True):
    def strategy(states, of_card, card, cards, per_node, tokens, hiding):
        def fits(parts):
            return states / parts + (of_card if rest else of_card / parts) <= card

        shows = tokens < hiding if at_least else tokens <= hiding
        if first and fits(1):
            return "DDP"
        if (shows or not hides) and fits(per_node):
            return "HYBRID_SHARD"
        return "FULL_SHARD" if fits(cards) else "none"

    return strategy


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
    ("9.7", "as advised", (13.88, 3)),
    ("9.7", "FULL_SHARD's samples", (19.14, 6)),
    ("9.8", "both train", (28, 9152, 28, 4576)),
    ("9.8", "both hold everything", (0, 9152, 28, 9152)),
    ("9.9", "cuts the activations", _strategy(rest=False)),
    ("9.9", "hybrid wherever it fits", _strategy(hides=False)),
    ("9.9", "never DDP", _strategy(first=False)),
    ("9.9", "as many tokens do not hide", _strategy(at_least=False)),
    ("9.12", "one port for each GPU", (9067.5, 5, 26.95, 260, 33)),
    ("9.12", "bf16 both ways", (1511.25, 1, 26.95, 260, 33)),
    ("9.12", "shards of gradients", (2266.875, 2, 0.842, 260, 33)),
    ("9.12", "gathers once", (2266.875, 2, 26.95, 65, 33)),
    ("9.12", "reduces each time", (2266.875, 2, 26.95, 260, 132)),
]

OTHER_FORMS = [
    ("9.7", "rounded", (19.1, 3)),
    ("9.6", "1 and 0", ({key: int(fits) for key, fits in _FITS.items()}, 36.4)),
]
