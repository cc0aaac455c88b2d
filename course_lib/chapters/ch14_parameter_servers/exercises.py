"""Exercises and quiz of chapter 14, parameter servers and RPC."""

from typing import Any

from course_lib.chapters.ch14_parameter_servers import builds
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange
from course_lib.checking import exercise, expect_calls, expect_entries, expect_numbers
from course_lib.theory.network.collectives import sent_bytes


@exercise("14.1")
def _three_ways(answer: Any) -> None:
    exchange = RowExchange(50_000, 128, element_bytes=2, header_bytes=0)
    dense = sent_bytes("all-reduce", 40_000_000 * 128 * 2, 16)
    right = (
        (exchange.total_bytes, "50,000 rows there and back, and their numbers; a row travels once"),
        (exchange.gathered_bytes(16), "gradients and numbers go to each of the 15 others"),
        (dense, "an all-reduce sends 2(n-1)/n of all rows, used or not"),
    )
    rows = [(size / 1e6, because, 5e-3, "MB") for size, because in right]
    expect_numbers(answer, "three sizes in MB", *rows)


_APPLY = "apply(table, rate, pushed)"
_TABLE = {3: 1.0, 7: 2.0, 9: -1.0}


def _as_one_process(table: dict[int, float], rate: float, pushed: Any) -> dict[int, float]:
    table, everybody = dict(table), sum(samples for samples, _ in pushed)
    for samples, gradient in pushed:
        for row, value in gradient.items():
            table[row] -= rate * value * samples / everybody
    return table


@exercise("14.3")
def _too_fast(function: Any) -> None:
    cases = (
        ([(4, {3: 2.0})], "one trainer needs no correction"),
        ([(4, {3: 2.0}), (4, {3: 2.0})], "two equal gradients have one mean, as large as each"),
        ([(4, {3: 2.0}), (4, {7: 4.0})], "a row of one trainer is in half of the samples only"),
        ([(12, {3: 2.0, 9: 1.0}), (4, {3: -2.0})], "who has more samples counts more"),
    )
    expect_calls(
        function,
        [
            ((_TABLE, 0.5, pushed), _as_one_process(_TABLE, 0.5, pushed), because)
            for pushed, because in cases
        ],
        signature=_APPLY,
        rel=1e-9,
    )


_EARLY = "a row changes before both gradients are there"
_ORDERED = "all rows, then all gradients, then all updates; who is first does not matter"
# The missing barrier in each trace of the server.
_TRACES: dict[str, tuple[object, str]] = {
    "A": ("none", _ORDERED),
    "B": ("before", _EARLY),
    "C": ("after", "a trainer gets rows for its next update before both have updated"),
    "D": ("none", _ORDERED),
    "E": ("before", _EARLY),
}


@exercise("14.4")
def _barrier(answer: Any) -> None:
    expect_entries(answer, _TRACES, "a dict of traces", each="'none', 'before' or 'after'")


_CLAIMS: dict[str, tuple[object, str]] = {
    "Gloo is a default backend of RPC": (
        "backend",
        "TensorPipe is RPC's only backend; until 1.9 there was one over process groups",
    ),
    "Gloo is a backend of DDP": ("right", "DDP uses the collectives of torch.distributed"),
    "DDP and nn.DataParallel work alike": (
        "processes",
        "DataParallel is one process with threads, DDP a process for each replica",
    ),
    "DDP: create a process for each replica of the module": ("right", "and it is faster"),
    "DDP: workers sum their gradients periodically": (
        "rhythm",
        "in every update; what averages periodically is local SGD",
    ),
    "backward: first the dense gradients, then DDP's all-reduce": ("right", "the trace shows it"),
    "backward: the rows' gradient is sent when the all-reduce has ended": (
        "order",
        "it leaves as soon as it is computed, before or after the end of the all-reduce",
    ),
}


@exercise("14.5")
def _claims(answer: Any) -> None:
    choices = "'right', 'backend', 'processes', 'rhythm' or 'order'"
    expect_entries(answer, _CLAIMS, "a dict of claims", each=choices)


_BY_SERVER = "by_server(ids, gradients, servers)"


def _sums(ids: list[int], gradients: list[float], servers: int) -> list[dict[int, float]]:
    by_server: list[dict[int, float]] = [{} for _ in range(servers)]
    for row, gradient in zip(ids, gradients, strict=True):
        own = by_server[row % servers]
        own[row // servers] = own.get(row // servers, 0.0) + gradient
    return by_server


@exercise("14.6")
def _push(function: Any) -> None:
    reasons = {
        ((5, 3), (1.0, 2.0), 1): "one server has all rows, under their own numbers",
        ((7, 3, 7, 7), (1.0, 2.0, 4.0, 8.0), 1): "a row travels once, with the sum",
        ((4, 7, 4), (1.0, 2.0, 4.0), 3): "a server of which no row was used gets nothing",
        ((3, 4, 5, 6, 7, 8), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 3): "row i is row i div S there",
    }
    cases = [
        ((list(ids), list(gradients), servers), _sums([*ids], [*gradients], servers), because)
        for (ids, gradients, servers), because in reasons.items()
    ]
    expect_calls(function, cases, signature=_BY_SERVER)


_PACES = (1.0, 1.0, 10.0)  # seconds of an update of each trainer


@exercise("14.7")
def _slow(answer: Any) -> None:
    counts = [10 / pace for pace in _PACES]
    # Updates by others within one update of each trainer; the sum includes its own.
    late = [sum(pace / other for other in _PACES) - 1 for pace in _PACES]
    mean = sum(a * b for a, b in zip(counts, late, strict=True)) / sum(counts)
    expect_numbers(
        answer,
        "three means: slow, fast, all",
        (late[2], "each of the two others makes 10 updates meanwhile", 1e-2, ""),
        (late[0], "the other fast one makes one, the slow one a tenth", 1e-2, ""),
        (mean, "each update makes the two other trainers' gradients later by one", 1e-2, ""),
    )


# Order within a trainer, between trainer and server, by DDP's all-reduce and by the barrier.
_PAIRS: dict[str, tuple[object, str]] = {
    "server looks up for 0 | loss of 0": ("first", "the loss needs the rows"),
    "rows' gradient of 0 leaves | all-reduce of 0 ends": ("either", "neither waits for the other"),
    "loss of 1 | dense gradients of 0": (
        "either",
        "nothing of trainer 0's backward needs trainer 1",
    ),
    "all-reduce of 0 ends | dense gradients of 1": ("second", "an all-reduce needs all ranks"),
    "server looks up for 1 | rows' gradient of 0 leaves": (
        "either",
        "trainers are not in step until the all-reduce, and the rows' gradient does not wait for "
        "it",
    ),
    "server updates the table | server looks up for 1": (
        "second",
        "each update follows an all-reduce, which needs the gradients of 1, and those need its "
        "rows",
    ),
}


@exercise("14.8")
def _order_of_backward(answer: Any) -> None:
    expect_entries(answer, _PAIRS, "a dict of pairs", each="'first', 'second' or 'either'")


_WAYS: dict[str, tuple[object, str]] = {
    "A": ("all-to-all", "the table fits only if it is cut over the GPUs, and NCCL gathers no rows"),
    "B": ("DDP", "where a batch uses all rows, nothing is saved by asking for some"),
    "C": ("server", "a collective needs all ranks at once; a server answers each as it comes"),
    "D": ("gather", "two ranks send their rows once, half of what a server would move"),
}


@exercise("14.11")
def _four_ways(answer: Any) -> None:
    ways = "'DDP', 'gather', 'server' or 'all-to-all'"
    expect_entries(answer, _WAYS, "a dict of teams", each=ways)


BUILDS = (builds.SERVER,)
