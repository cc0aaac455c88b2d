"""Collectives: bytes sent per GPU, steps, and time in the α–β model.

T = steps · α + sent bytes / β, with α the latency of one step in seconds and β the bandwidth of one
GPU in bytes per second, one way. `size_bytes` is always the whole tensor as nccl-tests counts it:
the tensor in all-reduce, broadcast and send/recv, the output of all-gather, the input of
reduce-scatter, all n pieces of one GPU in all-to-all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Annotated

from course_lib.checked import Count, NotNegative, Positive, check_public
from course_lib.theory.inputs.hardware import Link, ridge
from course_lib.theory.inputs.layout import ZeroStage

OPERATIONS = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "broadcast",
    "reduce",
    "send-recv",
)
Operation = Annotated[str, OPERATIONS]
# The share of the link's bandwidth that NCCL assumes for a tree (src/graph/tuning.cc: busBw * .92).
TREE_EFFICIENCY = 0.92


@dataclass(frozen=True)
class _Algorithm:
    """An algorithm for collectives.

    `steps`: number of ranks to sequential steps; an all-reduce takes twice as many. `trees`: number
    of trees, 0 for a ring. `whole_tensor`: each step sends the whole tensor, instead of a part.
    `share`: fraction of the link's bandwidth that it reaches. `operations`: those it supports.
    """

    steps: Callable[[int], int]
    trees: int
    operations: tuple[str, ...]
    whole_tensor: bool = False
    share: float = 1.0


def _levels(ranks: int) -> int:
    return (ranks - 1).bit_length()  # ceil(log2 n)


_OF_TREES = ("all-reduce", "broadcast", "reduce")
# "tree" sends the whole tensor up and down one binary tree, level by level; "double-tree" pipelines
# pieces of it through two trees (Sanders, Speck, Träff 2009; NCCL 2.4).
ALGORITHMS = {
    "ring": _Algorithm(lambda ranks: ranks - 1, 0, OPERATIONS),
    "tree": _Algorithm(_levels, 1, _OF_TREES, whole_tensor=True),
    "double-tree": _Algorithm(_levels, 2, _OF_TREES, share=TREE_EFFICIENCY),
}
TREES = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.trees)


def bus_factor(operation: Operation, ranks: Count) -> float:
    """Bus bandwidth over algorithm bandwidth: 2(n-1)/n, (n-1)/n or 1.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if operation == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("reduce-scatter", "all-gather", "all-to-all"):
        return (ranks - 1) / ranks
    return 1.0 if ranks > 1 else 0.0


def sent_bytes(operation: Operation, size_bytes: NotNegative, ranks: int) -> float:
    """Bytes that one GPU sends: size · 2(n-1)/n for all-reduce, · (n-1)/n for its halves.

    This is the minimum for messages between GPUs; every GPU of a ring sends just that, and those of
    a tree send it on average. In-network reduction, such as NVLink SHARP, is not modelled. In
    broadcast and reduce every GPU of the chain except the last sends the size once.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return size_bytes * bus_factor(operation, ranks)


def steps(
    operation: Operation, ranks: Count, algorithm: Annotated[str, ALGORITHMS] = "ring"
) -> int:
    """Number of sequential messages, each of which costs one latency.

    Ring: 2(n-1) for all-reduce, n-1 for the others; pairwise all-to-all n-1; trees: ceil(log2 n),
    twice for all-reduce; send/recv 1. Source: Thakur, Rabenseifner, Gropp 2005, section 4.
    """
    if operation not in ALGORITHMS[algorithm].operations:
        raise ValueError(
            f"algorithm {algorithm!r} does not do {operation}: take 'ring', or all-reduce, "
            "broadcast or reduce"
        )
    if ranks == 1:
        return 0
    if operation == "send-recv":
        return 1
    each = ALGORITHMS[algorithm].steps(ranks)
    return 2 * each if operation == "all-reduce" else each


def messages(
    operation: Operation, ranks: Count, algorithm: Annotated[str, ALGORITHMS] = "ring"
) -> int:
    """Total number of messages of all GPUs, without splitting into pipelined pieces.

    Ring: n · steps, but n-1 for broadcast and reduce (a chain). Tree: n-1 edges, each used once,
    or twice for all-reduce; a double tree has two trees.
    """
    count = steps(operation, ranks, algorithm)
    if count == 0 or operation == "send-recv":
        return count
    trees = ALGORITHMS[algorithm].trees
    if not trees:
        return ranks - 1 if operation in ("broadcast", "reduce") else ranks * count
    return trees * (ranks - 1) * (2 if operation == "all-reduce" else 1)


def seconds(
    operation: str, size_bytes: float, ranks: int, link: Link, *, algorithm: str = "ring"
) -> float:
    """Seconds of one collective: steps · latency + bytes / one-way bandwidth of a GPU's link."""
    count = steps(operation, ranks, algorithm)
    moved = moved_bytes(operation, size_bytes, ranks, algorithm)
    return count * link.latency_s + moved / link.bytes_per_s


def moved_bytes(
    operation: str, size_bytes: NotNegative, ranks: int, algorithm: str = "ring"
) -> float:
    """Bytes on the critical path, which `seconds` divides by the bandwidth.

    These are the bytes that one GPU sends; for the plain "tree", the whole size at each level,
    since a level starts only after the one below has ended.
    """
    levels = steps(operation, ranks, algorithm)
    whole_tensor = ALGORITHMS[algorithm].whole_tensor
    return levels * size_bytes if whole_tensor else sent_bytes(operation, size_bytes, ranks)


def crossover_bytes(
    operation: str,
    ranks: int,
    link: Link,
    *,
    tree: Annotated[str, TREES] = "double-tree",
    efficiency: Positive | None = None,
) -> float:
    """Size in bytes below which a tree is faster than a ring, where their times are equal.

    For an all-reduce: α (2(n-1) - 2 ceil(log2 n)) = size/β (f/efficiency - 2(n-1)/n), with
    f = 2 ceil(log2 n) for the plain tree and 2(n-1)/n for the double one. Infinite if the tree is
    never slower, 0 if it saves no steps. `efficiency`: the fraction of the bandwidth that the tree
    reaches; None: that of ALGORITHMS.
    """
    share = ALGORITHMS[tree].share if efficiency is None else efficiency
    saved = steps(operation, ranks) - steps(operation, ranks, tree)
    if saved == 0:
        return 0.0
    extra = moved_bytes(operation, 1, ranks, tree) / share - moved_bytes(operation, 1, ranks)
    return inf if extra <= 0 else saved * link.latency_s * link.bytes_per_s / extra


def bus_bandwidth(operation: str, size_bytes: NotNegative, ranks: int, time_s: Positive) -> float:
    """Bus bandwidth (busbw) in bytes/s: size / time · 2(n-1)/n, (n-1)/n or 1.

    It is comparable to a link's bandwidth. With in-network reduction it is not that of any wire,
    but what a ring would need for the same time. Source: nccl-tests, doc/PERFORMANCE.md; issue 212.
    """
    return size_bytes / time_s * bus_factor(operation, ranks)


def zero_volume(size_bytes: NotNegative, zero_stage: ZeroStage, ranks: int | None = None) -> float:
    """Bytes a GPU sends per step with one micro-batch: 2, 2, 2 or 3 times the parameters' size.

    ZeRO-0 all-reduces the gradients; 1 and 2 reduce-scatter them and gather the parameters; 3
    gathers the parameters for the forward and again for the backward pass. Gradients are assumed
    as large as parameters. `ranks` None: the paper's limit of many ranks; else times (n-1)/n.
    Source: ZeRO, arXiv:1910.02054, section 7.
    """
    volume = size_bytes * (3 if zero_stage == 3 else 2)
    return volume if ranks is None else volume * bus_factor("all-gather", ranks)


def tensor_parallel_bytes(
    micro_batch: int, sequence: int, hidden: int, tp: int, *, element_bytes: int = 2
) -> float:
    """Bytes a GPU sends per layer and micro-batch, forward and backward: 8bsh(t-1)/t elements.

    Four all-reduces of b·s·h; sequence parallelism sends as many bytes, since its all-gathers and
    reduce-scatters are halves of all-reduces. Source: Narayanan et al. 2021, arXiv:2104.04473,
    section 3.2; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    size = activation_bytes(micro_batch, sequence, hidden, element_bytes)
    return 4 * sent_bytes("all-reduce", size, tp)


def activation_bytes(
    micro_batch: Count, sequence: Count, hidden: Count, element_bytes: Count = 2
) -> int:
    """Bytes sent across a stage boundary in each direction per micro-batch: b·s·h elements.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 3.2.
    """
    return micro_batch * sequence * hidden * element_bytes


def matrix_intensity(hidden: Count, tp: Positive, element_bytes: Count = 2) -> float:
    """FLOP per byte sent for one h × h matrix split by columns over t GPUs: 3·2·h / t / element.

    There are 3 products, one forward and two backward (gradients of the input and of the weights),
    of 2·h/t FLOP per input element, which is received once. The study notes use this estimate, with
    t = heads. It leaves out the rest of the layer: see `layer_intensity`.
    """
    return 3 * 2 * hidden / tp / element_bytes


def layer_intensity(
    hidden: Count, tp: Count, element_bytes: Count = 2, layer_parameters: Count | None = None
) -> float:
    """FLOP per byte sent for a whole layer under tensor parallelism, forward and backward.

    (6 P b s / t) / (8 b s h (t-1)/t · element) = 6P / (8h (t-1) · element), attention scores left
    out. `layer_parameters` P None: 12h², which gives 4.5h/(t-1) in 16 bits. Infinite at t = 1.
    Source: from Narayanan et al. 2021, arXiv:2104.04473, section 3.2.
    """
    parameters = 12 * hidden * hidden if layer_parameters is None else layer_parameters
    return inf if tp == 1 else 6 * parameters / (8 * hidden * (tp - 1) * element_bytes)


def matrix_tp_reach(
    hidden: int, peak_flop_per_s: float, bytes_per_s: float, element_bytes: int = 2
) -> float:
    """Largest real t with `matrix_intensity` >= peak / bandwidth: 6h / element bytes / ridge."""
    return matrix_intensity(hidden, 1, element_bytes) / ridge(peak_flop_per_s, bytes_per_s)


def layer_tp_reach(
    hidden: int,
    peak_flop_per_s: float,
    bytes_per_s: float,
    *,
    element_bytes: int = 2,
    layer_parameters: int | None = None,
) -> int:
    """Largest integer t with `layer_intensity` >= peak / bandwidth: floor(1 + 6P / (8h·e·ridge)).

    Overlap, latency and efficiency losses are ignored. For P = 12h², 6P/(8h·e) is 9h/e.
    """
    of_two = layer_intensity(hidden, 2, element_bytes, layer_parameters)
    return int(1 + of_two / ridge(peak_flop_per_s, bytes_per_s))


check_public(globals())
