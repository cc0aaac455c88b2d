"""Answers to chapter 6 that a check must refuse: (exercise, what was thought, answer)."""

from itertools import zip_longest


def _all_reduce(pad=True, cut=True, halves=True, both=True):
    def all_reduce(rows, reduce_scatter, all_gather):
        ranks, length = len(rows), len(rows[0])
        if not halves:
            total = [sum(column) for column in zip(*rows, strict=True)]
            return [total] * ranks
        zeros = [0.0] * (-length % ranks) if pad else []
        shards = reduce_scatter([row + zeros for row in rows])
        whole = all_gather(shards) if both else shards
        return [row[:length] if cut else row for row in whole]

    return all_reduce


def _all_reduce_with_ones(rows, reduce_scatter, all_gather):
    ranks, length = len(rows), len(rows[0])
    kept = -(-length // ranks) * ranks - length
    whole = all_gather(reduce_scatter([[1.0] * kept + row for row in rows]))
    return [row[:length] for row in whole]


def _wrong_for_four(steps):
    """Right for any other number of ranks."""

    def broadcast_steps(ranks):
        return steps if ranks == 4 else _broadcast("right")(ranks)

    return broadcast_steps


def _broadcast(kind):
    def broadcast_steps(ranks):
        if kind == "all from rank 0":
            return [[(0, rank) for rank in range(1, ranks)]]
        steps, have = [], 1
        while have < ranks:
            pairs = [(rank, rank + have) for rank in range(have)]
            if kind == "right":
                pairs = [pair for pair in pairs if pair[1] < ranks]
            if kind == "upward only":
                pairs = [(rank, rank + have) for rank in range(have, 2 * have)]
            steps.append(pairs)
            have *= 2
        return steps[:-1] if kind == "one step too few" else steps

    return broadcast_steps


def _odd(first=0, longest=True, all_of_them=True):
    def odd_ranks(begun):
        lists = zip_longest(*begun) if longest else zip(*begun, strict=False)
        for place, calls in enumerate(lists, start=first):
            usual = max(calls, key=calls.count)
            odd = [rank for rank, call in enumerate(calls) if call != usual]
            if odd:
                return place, odd if all_of_them else odd[:1]
        return None

    return odd_ranks


_VERDICT = {"A": "healthy ring", "B": "switches add", "C": "links missing", "D": "latency"}
_BEST = ["tree", "latency", "bandwidth"]
_SECONDS = [122.9e-6, 1.392e-3, 40.58e-3]
_PORTS = "twice the ports"
_FEWER = "100 tensors of 10 MB"
MISTAKES = [
    ("6.1", "sends the tensor once", (40.3e-3, 0.328, _FEWER)),
    ("6.1", "only one half of the ring", (37.6e-3, 0.1815, _FEWER)),
    ("6.1", "a thousand calls cost one latency each", (75.3e-3, 84.6e-3, _FEWER)),
    ("6.1", "latency is more than half, so halve it", (75.3e-3, 0.363, "half the latency")),
    ("6.2", "the tensor is sent once", (10e-6, 1e9 / 35e-3, 664e-6)),
    ("6.2", "algorithm bandwidth", (10e-6, 1e9 / 35.14e-3, 665e-6)),
    ("6.3", "does not fill up", _all_reduce(pad=False)),
    ("6.3", "leaves the zeros", _all_reduce(cut=False)),
    ("6.3", "adds by itself", _all_reduce(halves=False)),
    ("6.3", "forgets to gather", _all_reduce(both=False)),
    ("6.3", "fills up at the wrong end", _all_reduce_with_ones),
    ("6.4", "one sends what it has not", _wrong_for_four([[(0, 1), (2, 3)], [(0, 2)]])),
    ("6.4", "leaves one rank out", _wrong_for_four([[(0, 1)], [(0, 2)]])),
    ("6.4", "rank 0 sends to all at once", _broadcast("all from rank 0")),
    ("6.4", "only powers of two", _broadcast("powers")),
    ("6.4", "senders have nothing", _broadcast("upward only")),
    ("6.4", "one step too few", _broadcast("one step too few")),
    ("6.5", "all send first", lambda rank, ranks: ["send", "recv"]),
    ("6.5", "all receive first", lambda rank, ranks: ["recv", "send"]),
    ("6.5", "only sends", lambda rank, ranks: ["send", "send"]),
    ("6.6", "believes that it divides", (8, 1024, 0.01)),
    ("6.6", "the ring sends it twice", (7, 1023, 0.16)),
    ("6.7", "equal times are equally good", _VERDICT | {"C": "healthy ring"}),
    ("6.7", "1.3 GB/s is a broken link", _VERDICT | {"D": "links missing"}),
    ("6.8", "the tree for all but the largest", (["tree", "tree", "bandwidth"], _SECONDS)),
    ("6.8", "the old times", (_BEST, [1.211e-3, 1.997e-3, 79.96e-3])),
    ("6.9", "counts places from 1", _odd(first=1)),
    ("6.10", "all of the tensor crosses the network", (6.27e-3, 56.13e-3, _PORTS)),
    ("6.10", "one stage inside", (3.135e-3, 7.134e-3, _PORTS)),
    ("6.10", "NVLink carries the most bytes", (6.27e-3, 7.134e-3, "twice the NVLink")),
    ("6.9", "only what all have begun", _odd(longest=False)),
    ("6.9", "only the first rank that is odd", _odd(all_of_them=False)),
]

# Right answers that look different from the solution: (exercise, form, answer).
OTHER_FORMS = [
    ("6.10", "in ms", ("6.27 ms", "7.13 ms", "Twice the ports")),
    ("6.1", "in ms", ("75.3 ms", "363 ms", "100 Tensors of 10 MB")),
    ("6.8", "rounded", (("Tree", "latency", "bandwidth"), _SECONDS)),
    ("6.9", "lists", lambda begun: (found := _odd()(begun)) and list(found)),
]
