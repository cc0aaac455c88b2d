"""Exercises and quiz of chapter 6, collectives and the α–β model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from course_lib.chapters.ch06_collectives import builds
from course_lib.checking import (
    Wrong,
    call,
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_number,
    expect_numbers,
    expect_parts,
    run,
)
from course_lib.checking.helpers import gave, is_whole_numbers, same, show
from course_lib.theory.inputs.hardware import HDR, NDR, Link, accelerator
from course_lib.theory.network import collectives
from course_lib.theory.network.all_reduce import nccl_ways

_GB = 10**9
_NVLINK = accelerator("H100-SXM").inside


@exercise("6.1")
def _one_or_a_thousand(answer: Any) -> None:
    expect_parts(answer, 3, "seconds of one tensor, seconds of a thousand, and an offer")

    def total(calls: int, link: Link = HDR) -> float:
        return calls * collectives.seconds("all-reduce", _GB / calls, 16, link)

    because = "30 steps of 9.6 µs for each call, and 2 · 15/16 of 1 GB in all"
    for got, calls in zip(answer, (1, 1000), strict=False):
        expect_number(got, total(calls), because, rel=5e-3, unit="s")
    offers = {
        "twice the bandwidth": total(1000, replace(HDR, bytes_per_s=2 * HDR.bytes_per_s)),
        "half the latency": total(1000, replace(HDR, latency_s=HDR.latency_s / 2)),
        "100 tensors of 10 MB": total(100),
    }
    because = ", ".join(f"{name}: {1000 * time:.0f} ms" for name, time in offers.items())
    expect_choice(answer[2], min(offers, key=offers.__getitem__), because, choices=tuple(offers))


@exercise("6.2")
def _two_times(answer: Any) -> None:
    steps = collectives.steps("all-reduce", 8)
    sent = collectives.sent_bytes("all-reduce", _GB, 8)
    link = Link("as measured", sent / (35.14e-3 - 140e-6), 140e-6 / steps)
    flow = "1.75 GB flow in what is left of 35.14 ms without the 14 latencies"
    gathered_s = collectives.seconds("all-gather", 1_000_000, 64, link)
    expect_numbers(
        answer,
        "seconds, bytes per second and seconds",
        (link.latency_s, "140 µs are 14 steps", 5e-3, "s"),
        (link.bytes_per_s, flow, 5e-3, "B/s"),
        (gathered_s, "63 steps, and 63/64 of 1 MB", 5e-3, "s"),
    )


@exercise("6.3")
def _two_halves(function: Any) -> None:
    for ranks, length in ((2, 4), (3, 6), (4, 7), (3, 1), (1, 3)):
        rows = [
            [float((rank + 1) * (number + 1)) for number in range(length)] for rank in range(ranks)
        ]
        total = [sum(column) for column in zip(*rows, strict=True)]
        what = f"{ranks} ranks with {length} numbers each"
        called: list[str] = []
        signature = "all_reduce(rows, reduce_scatter, all_gather)"
        result = call(function, rows, *_halves(what, called), signature=signature)
        if not same(result, [total] * ranks):
            because = "each rank gets the whole sum, as long as its row was"
            raise gave(result, [total] * ranks, because, what=what)
        if called != ["reduce_scatter", "all_gather"]:
            calls = ", ".join(called) or "no call"
            raise Wrong(f"{what} made {calls}, expected reduce_scatter, then all_gather, once each")


def _halves(what: str, called: list[str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Reduce-scatter and all-gather on lists; each call appends its name to `made`."""

    def reduce_scatter(rows: list[list[float]]) -> list[list[float]]:
        called.append("reduce_scatter")
        ranks, length = len(rows), len(rows[0])
        if length % ranks:
            got = f"reduce_scatter got rows of {length} numbers for {ranks} ranks"
            raise Wrong(f"{what}: {got}; expected zeros to fill the rows up")
        total, size = [sum(column) for column in zip(*rows, strict=True)], length // ranks
        return [total[start : start + size] for start in range(0, length, size)]

    def all_gather(shards: list[list[float]]) -> list[list[float]]:
        called.append("all_gather")
        return [[number for shard in shards for number in shard] for _ in shards]

    return reduce_scatter, all_gather


@exercise("6.4")
def _broadcast(function: Any) -> None:
    for ranks in (2, 4, 8, 6, 13, 1):
        ask = call if ranks == 2 else run  # None from the first call means: not answered yet
        _check_steps(ask(function, ranks, signature="broadcast_steps(ranks)"), ranks)


def _check_steps(steps: Any, ranks: int) -> None:
    what = f"broadcast_steps({ranks})"
    pairs_wanted = f"{what} wants a list of steps, each a list of pairs (from, to)"
    if not isinstance(steps, list | tuple):
        raise Wrong(f"{pairs_wanted}, got {show(steps)}")
    have = {0}
    for number, step in enumerate(steps, start=1):
        pairs = isinstance(step, list | tuple) and all(map(is_whole_numbers, step))
        if not pairs or any(len(pair) != 2 for pair in step):
            raise Wrong(f"{pairs_wanted}, got {show(step)}")
        busy = [rank for pair in step for rank in pair]
        if len(set(busy)) < len(busy):
            raise Wrong(f"{what}, step {number}: {show(step)}, expected each rank at most once")
        if not all(0 <= rank < ranks for rank in busy):
            raise Wrong(f"{what}, step {number}: {show(step)}, expected ranks below {ranks}")
        empty = [source for source, _ in step if source not in have]
        if empty:
            raise Wrong(
                f"{what}, step {number}: rank {empty[0]} sends, expected one that has the tensor"
            )
        have |= {to for _, to in step}
    if len(have) < ranks:
        missing = min(set(range(ranks)) - have)
        raise Wrong(f"{what}: rank {missing} got nothing, expected all ranks to have the tensor")
    least = collectives.steps("broadcast", ranks, "tree")
    if len(steps) != least:
        because = "the number of ranks that have it can double in each step"
        raise gave(len(steps), least, because, "steps", what=what)


@exercise("6.5")
def _order(function: Any) -> None:
    for ranks in (2, 3, 4, 5, 8):
        asked = [(rank, ranks) for rank in range(ranks)]
        orders = [call(function, *each, signature="order(rank, ranks)") for each in asked]
        for rank, calls in enumerate(orders):
            if not any(same(calls, right) for right in (["recv", "send"], ["send", "recv"])):
                because = "each rank sends once and receives once"
                raise gave(calls, ["send", "recv"], because, what=f"order({rank}, {ranks})")
        first = [calls[0] for calls in orders]
        if len(set(first)) == 1:  # if the ranks' orders differ, no rank hangs
            raise Wrong(
                f"on {ranks} ranks rank 0 waits in {first[0]} forever, expected every send to meet "
                "its recv: some ranks must receive first, and not all of them"
            )


@exercise("6.6")
def _sum_average_broadcast(answer: Any) -> None:
    rows = []
    for ranks in (8, 1024):
        ratio = 2 * (ranks - 1) * _GB / collectives.sent_bytes("all-reduce", _GB, ranks)
        because = f"2 · {ranks - 1} tensors pass rank 0; a ring's rank sends 1/{ranks} of that"
        rows.append((ratio, because))
    rate = (16 * 0.01, "it sums, unless op says ReduceOp.AVG")
    expect_numbers(answer, "two ratios and a learning rate", *rows, rate, rel=5e-3)


_LINES = {  # server: operation, bytes, seconds
    "A": ("all-reduce", 8 * _GB, 38.2e-3),
    "B": ("all-reduce", 8 * _GB, 29.2e-3),
    "C": ("all-gather", 8 * _GB, 38.2e-3),
    "D": ("all-reduce", 64_000, 57e-6),
}
_SIMPLE = next(way for way in nccl_ways() if way.name == "Ring, Simple")
_HEALTHY = 0.75  # of a link's bandwidth: NVLink's protocol leaves about 80 % (section 6.3)


def _verdict(operation: str, size: int, time_s: float) -> tuple[str, str]:
    """The diagnosis that a line of nccl-tests implies for eight H100s, and the reason."""
    if _SIMPLE.latency_s > 0.9 * time_s:
        return "latency", f"the call and its steps alone take {1e6 * _SIMPLE.latency_s:.0f} µs"
    share = collectives.bus_bandwidth(operation, size, 8, time_s) / _NVLINK.bytes_per_s
    because = f"its busbw is {share:.0%} of one way"
    if share > 1:
        return "switches add", f"{because}, and no ring can do that"
    return ("healthy ring" if share > _HEALTHY else "links missing"), because


@exercise("6.7")
def _four_servers(answer: Any) -> None:
    verdicts = {server: _verdict(*line) for server, line in _LINES.items()}
    each = "'healthy ring', 'switches add', 'latency' or 'links missing'"
    expect_entries(answer, verdicts, "a dict with a verdict for each server", each=each)


@exercise("6.8")
def _buy(answer: Any) -> None:
    expect_parts(answer, 2, "two lists, what is best and how long it takes")
    best, seconds = answer
    expect_parts(best, 3, "what is best for three sizes")
    expect_parts(seconds, 3, "the seconds for three sizes")
    offers = {
        "bandwidth": (replace(HDR, bytes_per_s=2 * HDR.bytes_per_s), "ring"),
        "latency": (replace(HDR, latency_s=HDR.latency_s / 2), "ring"),
        "tree": (HDR, "tree"),
    }
    for index, size in enumerate((16_000, 10_000_000, _GB)):
        takes = {
            name: collectives.seconds("all-reduce", size, 64, link, algorithm=algorithm)
            for name, (link, algorithm) in offers.items()
        }
        fastest = min(takes, key=lambda name: takes[name])
        listed = ", ".join(f"{name} {1000 * time:.3g} ms" for name, time in takes.items())
        because = f"{size:,} bytes take: {listed}"
        expect_choice(best[index], fastest, because, choices=tuple(offers))
        expect_number(seconds[index], takes[fastest], because, rel=1e-2, unit="s")


@exercise("6.9")
def _odd(function: Any) -> None:
    step, loss = "all-reduce 25 MB", "all-reduce 4 B"
    gather, other = ["all-gather 8 MB"], ["all-gather 6 MB"]
    runs = {
        "rank 0 alone sums its loss, in an `if rank == 0`": [[step, loss, step], *[[step] * 2] * 3],
        "rank 2 never came to the third call": [[step] * 3, [step] * 3, [step] * 2, [step] * 3],
        "the same call with another size is another call": [gather, gather, gather, other],
        "rank 0 was the first to stop": [[step] * count for count in (1, 4, 2, 4, 4)],
        "two ranks have not begun": [[], [step], [step], [], *[[step]] * 3],
        "all have begun the same": [[step, loss]] * 3,
    }
    cases = [((begun,), _first_odd(begun), because) for because, begun in runs.items()]
    expect_calls(function, cases, signature="odd_ranks(begun)")


def _first_odd(begun: list[list[str]]) -> tuple[int, list[int]] | None:
    for position in range(max(map(len, begun))):
        current = [calls[position] if position < len(calls) else "" for calls in begun]
        usual = max(current, key=current.count)
        if odd := [rank for rank, call in enumerate(current) if call != usual]:
            return position, odd
    return None


@exercise("6.10")
def _inside_or_between(answer: Any) -> None:
    expect_parts(answer, 3, "seconds inside, seconds between, and an improvement")

    def stages(faster: float = 1, ports: float = 1, latency: float = 1) -> tuple[float, float]:
        inside, between = (
            Link("", wire.bytes_per_s * rate, wire.latency_s * latency)
            for wire, rate in ((_NVLINK, faster), (NDR, ports))
        )
        halves = ("reduce-scatter", "all-gather")
        spent = sum(collectives.seconds(half, 1.6 * _GB, 8, inside) for half in halves)
        return spent, collectives.seconds("all-reduce", 1.6 * _GB / 8, 8, between)

    reasons = (
        "two stages of 7 steps, with 7/8 of the tensor each, over NVLink",
        "an eighth of the tensor, all-reduced on 8 ranks over the network",
    )
    for got, time_s, because in zip(answer, stages(), reasons, strict=False):
        expect_number(got, time_s, because, rel=5e-3, unit="s")
    offers = {
        "twice the NVLink": sum(stages(faster=2)),
        "twice the ports": sum(stages(ports=2)),
        "half the latencies": sum(stages(latency=0.5)),
    }
    because = ", ".join(f"{name}: {1000 * time:.1f} ms" for name, time in offers.items())
    expect_choice(answer[2], min(offers, key=offers.__getitem__), because, choices=tuple(offers))


BUILDS = (builds.RING, builds.TREE)
