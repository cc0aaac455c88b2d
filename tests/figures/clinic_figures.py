"""Figures of the clinic, for test_figures: recorded outputs, and extremes."""

from collections.abc import Callable
from typing import NamedTuple

from course_lib import figures
from course_lib.clinic.gpu_topology import Topology, topology
from course_lib.clinic.recorded import output
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.network.pairwise import PairTest, SlowPart, name_slow, rounds

NEAR = topology(output("nvidia-smi_topo").text)
FAR = topology(output("nvidia-smi_topo_far").text)
SIX = {
    (f"GPU{a}", f"GPU{b}"): "NV12" if a // 2 == b // 2 else "SYS"
    for a in range(6)
    for b in range(6)
}
PHB = {(a, b): "PHB" for a in ("GPU0", "mlx5_0") for b in ("GPU0", "mlx5_0")}
DEEP = [("<module>", "yours"), *[("a_function_with_a_long_name", "torch")] * 40]


def node(ways: dict[tuple[str, str], str]) -> Topology:
    return Topology(tuple(dict.fromkeys(name for name, _ in ways)), ways)


class Tensor(NamedTuple):
    kind: str
    title: str
    measured: float
    typical: float


def tensors(*ratios: float) -> list[Tensor]:
    """Tensors of the four kinds, one after the other."""
    kinds = ("weight", "output", "loss", "gradient of the output", "gradient of the weight")
    count = len(ratios)
    return [
        Tensor(kinds[5 * place // count], f"tensor {place} of blocks.1.norm2", 1e-6 * ratio, 1e-6)
        for place, ratio in enumerate(ratios)
    ]


def pairs(ranks: int, schedule: str, slow: int) -> Drawing:
    """A grid in which all pairs with one rank are slow."""
    tests = [
        PairTest(a, b, 5.9e6 if slow in (a, b) else 4.47e9)
        for several in rounds(ranks, schedule)
        for a, b in several
    ]
    return figures.pair_rates(tests, name_slow(tests), "Pairs")


RIGHT = tensors(*[0.0] * 30, *[0.01, 0.3, 3.9, 0.2] * 16)
BROKEN = tensors(*[0.0] * 30, *[0.3] * 22, *[86_349.1, 0.1, 12.0, 44_000.0] * 11)
CLINIC: dict[str, Callable[[], Drawing]] = {
    "node ways": lambda: figures.node_ways({"near": NEAR, "far": FAR}),
    "node ways, six GPUs": lambda: figures.node_ways({"six GPUs": node(SIX)}),
    "node ways, one GPU": lambda: figures.node_ways({"one GPU": node({("GPU0", "GPU0"): "X"})}),
    "node ways, no switch": lambda: figures.node_ways({"no switch": node(PHB)}),
    "rank stacks": lambda: figures.rank_stacks(
        {
            "rank 0": [("train", "yours"), ("unshard", "torch"), ("gather", "communication")],
            "rank 1": [("train", "yours"), ("load_batch", "yours")],
        },
        "A hang",
    ),
    "rank stacks, deep": lambda: figures.rank_stacks({f"rank {n}": DEEP for n in range(6)}),
    "tensor by tensor": lambda: figures.tensor_by_tensor(
        {"right": RIGHT, "broken": BROKEN}, "TP 2"
    ),
    "tensor by tensor, one": lambda: figures.tensor_by_tensor({"a": tensors(0.0)}),
    "tensor by tensor, at once": lambda: figures.tensor_by_tensor({"a": tensors(*[1e9] * 9)}),
    "pair rates": lambda: pairs(4, "halving", 2),
    "pair rates, eight": lambda: pairs(8, "all", 0),
    "pair rates, two": lambda: figures.pair_rates([PairTest(0, 1, 1e6)], SlowPart("nothing")),
    "flight records": lambda: figures.flight_records(
        {"rank 0": ["3 × 4", "4 × 5", "3 × 4"], "rank 1": ["3 × 4", "3 × 4"]}, "Calls"
    ),
    "flight records, alike": lambda: figures.flight_records(
        {f"rank {rank}": ["1024"] * 10 for rank in range(8)}
    ),
}
BAD_CLINIC: list[Callable[[], object]] = [
    lambda: figures.rank_stacks({"rank 0": []}),
    lambda: figures.tensor_by_tensor({"a": []}),
    lambda: figures.flight_records({}),
]
