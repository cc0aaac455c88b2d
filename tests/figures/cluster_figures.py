"""Network, parameter servers and clusters: extremes included, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

from course_lib import figures
from course_lib.theory.inputs.hardware import HDR, PCIE4, Link, accelerator
from course_lib.theory.network.all_reduce_ways import all_reduce_ways
from course_lib.theory.network.blocks import OPERATIONS, exchange
from course_lib.theory.network.one_slow_link import OneSlowLink
from course_lib.theory.network.ring_or_tree import ring_or_tree
from course_lib.theory.network.served import ServedTraining
from course_lib.theory.network.sparse import RowExchange
from course_lib.theory.step.recovery import Saving

SERVED = ServedTraining(RowExchange(100_000, 64), 8, 1, compute_s=0.02, bytes_per_s=25e9)

TITLE = "llama3-405b, accumulate-20, adamw-8bit: 14 bytes per parameter"

MOMENTS = ["submitted", "started", "training", "killed", "requeued", "restarted", "resumed", "done"]

LATE = {"done": 3600.0, "resumed": 3599.9}


CLUSTER: dict[str, Callable[[], figures.Drawing]] = {
    "used rows": lambda: figures.used_rows([4, 1, 4], [[0, 0]] * 4 + [[2, 2], [0, 0]], TITLE),
    "used rows, one": lambda: figures.used_rows([0] * 16, [[16.0]]),
    "who asks whom": lambda: figures.who_asks_whom(
        {"master": "control", "a": "dense", "b": "dense", "server": "rows"},
        [
            ("master", "a", "train"),
            ("a", "server", "row 1"),
            ("server", "a", "2 B"),
            ("a", "b", "all-reduce"),
        ],
        TITLE,
    ),
    "who asks whom, many": lambda: figures.who_asks_whom(
        {f"trainer {n}": "looks up 7, 3, 7, 7" for n in range(4)} | {"server": "1 table"},
        [(f"trainer {n}", "server", "2 row numbers, 2 gradients: 544 B") for n in range(4)],
    ),
    "requeue": lambda: figures.requeue_timeline(dict(zip(MOMENTS, range(0, 80, 10), strict=True))),
    "requeue, at the end": lambda: figures.requeue_timeline(dict.fromkeys(MOMENTS, 0.0) | LATE),
    "collective times": lambda: figures.collective_times(
        ring_or_tree("all-reduce", 2**32, 1024, PCIE4, tree="double-tree")
    ),
    "collective times, no tree": lambda: figures.collective_times(
        ring_or_tree("all-to-all", 2**10, 2, accelerator("H100-SXM").inside), TITLE
    ),
    "collective times, measured": lambda: figures.collective_times(
        ring_or_tree("all-reduce", 2**15, 4, Link("slow", 1e7, 5e-3)),
        smallest=2**10,
        largest=2**20,
        measured={"ring": [(2**10, 0.03), (2**19, 0.1)], "tree": [(2**10, 0.02)]},
    ),
    "who sends": lambda: figures.who_sends(all_reduce_ways(8), "× S"),
    "who sends, many": lambda: figures.who_sends(all_reduce_ways(12), "× S"),
    "who sends, two": lambda: figures.who_sends(
        {name: way for name, way in all_reduce_ways(2).items() if name != "tree"}, "MB"
    ),
    "slow ring": lambda: figures.slow_ring(OneSlowLink(4e9, 64, HDR, 6.25e9, 8)),
    "slow ring, nothing slow": lambda: figures.slow_ring(OneSlowLink(1e3, 2, HDR, 25e9)),
    "meters": lambda: figures.meters(
        {f"GPU {n}": {"busy, %": 100 - n, "power, W": None} for n in range(16)},
        {"busy, %": 100, "power, W": 1400},
        TITLE,
    ),
    "meters, three": lambda: figures.meters(
        {"GPU 0": {"busy": 0, "memory": 100, "power, W": 1400}},
        {"busy": 100, "memory": 100, "power, W": 1400},
    ),
    "late": lambda: figures.late_gradients([[0, 1, 1, 2, 1], [0, 1, 1, 1, 1], [7, 8]]),
    "late, one trainer": lambda: figures.late_gradients([[0] * 4]),
    "late, many": lambda: figures.late_gradients([list(range(t, t + 90)) for t in range(20)]),
    "served": lambda: figures.served_updates(SERVED, 10**9),
    "served, one trainer": lambda: figures.served_updates(replace(SERVED, trainers=1), 10**5),
    "served, far too many": lambda: figures.served_updates(
        replace(SERVED, trainers=4096, servers=2, compute_s=0.001), 10**10
    ),
    "served, a server each": lambda: figures.served_updates(replace(SERVED, servers=64), 10**7),
    "wasted time": lambda: figures.wasted_time(Saving(3600, 60, 11_135, 600), TITLE),
    "wasted time, measured": lambda: figures.wasted_time(
        Saving(1156, 60, 11_135, 600), measured={"simulated, 54 days each": [(1156, 0.17)]}
    ),
    "wasted time, far left": lambda: figures.wasted_time(Saving(1, 1, 10)),
    "wasted time, far right": lambda: figures.wasted_time(Saving(86_000, 60, 11_135, 600)),
    "blocks": lambda: figures.collective_grid([exchange(one, 3) for one in OPERATIONS[:7]]),
    "blocks, one": lambda: figures.collective_grid([exchange("send-recv", 2)]),
    "blocks, four ranks": lambda: figures.collective_grid(
        [exchange(one, 4) for one in ("all-to-all", "reduce-scatter", "all-gather")]
    ),
}
BAD_CLUSTER: list[Callable[[], object]] = [
    lambda: figures.who_sends({}, "MB"),
    lambda: figures.who_sends(all_reduce_ways(13), "MB"),
    lambda: figures.who_asks_whom({"a": ""}, [("a", "nobody", "rows")]),
]
