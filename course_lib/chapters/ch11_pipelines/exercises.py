"""Exercises and quiz of chapter 11, pipeline parallelism."""

from dataclasses import replace
from typing import Any

from course_lib.chapters.ch11_pipelines import builds
from course_lib.checking import (
    Wrong,
    exercise,
    expect_calls,
    expect_entries,
    expect_equal,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_type,
)
from course_lib.theory.inputs.hardware import Cluster, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network.step_traffic import step_traffic
from course_lib.theory.pipelines import bubble, schedules
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.schedules import Pass, Schedule
from course_lib.theory.pipelines.simulation import Deadlock, simulate, timeline

_CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb1p": 1}
_ROOM_GB, _STATES_GB = 80, 40  # of a GPU; of weights, gradients and states
_ONE_GB = 34 / 8  # activations of a micro-batch on one stage


def _measures() -> dict[str, tuple[str, str]]:
    """The verdict on each measure of exercise 11.2, and why; last, the shortest update."""
    half = PassTimes(0.5, 1)
    runs = {
        "GPipe's order": (timeline("gpipe", 8, 32), 1.0, "all 32 are in flight"),
        "two chunks on each stage, interleaved": (
            timeline("interleaved", 8, 32, 2),
            1.0,
            "stage 0 holds p + (p - 1) / v = 11.5",
        ),
        "ZB-H1": (timeline("zb1p", 8, 32), 1.0, "each stage holds 8, and 7 units are idle"),
        "64 micro-batches of 1 sequence": (
            timeline("1f1b", 8, 64, times=half),
            0.5,
            "the idle 7 passes, forward and backward, are half as long",
        ),
        "recompute each stage before its backward pass": (
            timeline("1f1b", 8, 32, times=PassTimes(1, 3)),
            1.0,
            "each micro-batch takes 4 units instead of 3",
        ),
    }
    now, verdicts, spans = timeline("1f1b", 8, 32).makespan, {}, {}
    for name, (ran, size, because) in runs.items():
        held = max(ran.in_flight(stage) for stage in range(8))
        if _STATES_GB + held * size * _ONE_GB > _ROOM_GB:
            verdicts[name] = ("too large", because)
            continue
        spans[name] = ran.makespan
        verdicts[name] = ("faster" if ran.makespan < now else "slower", because)
    best = min(spans, key=spans.__getitem__)
    verdicts["the shortest update"] = (best, "96 + 7 units, against 96 + 10.5")
    return verdicts


@exercise("11.2")
def _which_measure(answer: Any) -> None:
    expect_entries(answer, _measures(), "a dict of verdicts", each="a verdict, or a measure's name")


_FAST, _SLOW = 0.1, 0.13  # seconds of a forward pass; a backward pass takes twice as long
_FORWARD = (_FAST, _FAST, _FAST, _SLOW)


def _update(forward: tuple[float, ...], micro_batches: int) -> float:
    backward = tuple(2 * seconds for seconds in forward)
    return timeline("1f1b", 4, micro_batches, times=PassTimes(forward, backward)).makespan


@exercise("11.3")
def _not_faster(answer: Any) -> None:
    assert [round(_update(_FORWARD, m), 2) for m in (8, 16)] == [4.02, 7.14]
    more = "each more micro-batch costs one pass of the slowest stage: 3.12 s / 8"
    first = "4.02 s are one micro-batch through all stages and 7 times the slowest"
    alike = _update((sum(_FORWARD) / 4,) * 4, 16)
    expect_numbers(
        answer,
        "three times in seconds",
        (3 * _SLOW, more, 5e-3, "s"),
        (3 * _FAST, first, 5e-3, "s"),
        (alike, "(m + p - 1) times the mean of the stages", 5e-3, "s"),
    )


_EIGHT = (8,) * 8
_CLUSTERS: dict[str, tuple[float, tuple[int, ...], bool, str]] = {
    "a message takes 0.1 units; room for 8 micro-batches on every stage": (
        0.1,
        _EIGHT,
        True,
        "within the memory of 1F1B's first stage W fills two thirds of the bubble",
    ),
    "the same, but the last stage, with its logits, has room for 2": (
        0.1,
        (*_EIGHT[1:], 2),
        True,
        "ZB-H1 holds p on every stage; 1F1B holds one on the last",
    ),
    "the same, room for 12 everywhere, but no split backward passes": (
        0.1,
        (12,) * 8,
        False,
        "two chunks halve the bubble and hold 11.5",
    ),
    "a message takes a whole unit; room for 16 everywhere": (
        1.0,
        (16,) * 8,
        True,
        "GPipe waits for messages only while it fills and empties",
    ),
}


def _shortest(cluster: str) -> str:
    """The schedule with the shortest update among those that fit into every stage's memory."""
    transfer, room, splits, _ = _CLUSTERS[cluster]
    spans = {}
    for name, chunks in _CHUNKS.items():
        ran = timeline(name, 8, 16, chunks, times=PassTimes(transfer=transfer))
        if all(ran.in_flight(stage) <= room[stage] for stage in range(8)):
            spans[name] = ran.makespan
    if not splits:
        spans.pop("zb1p", None)
    return min(spans, key=spans.__getitem__)


@exercise("11.4")
def _which(answer: Any) -> None:
    right = {name: (_shortest(name), because) for name, (*_, because) in _CLUSTERS.items()}
    expect_entries(answer, right, "a dict of schedules", each="the name of a schedule")


_PIPELINED = Layout(pp=4, accumulation=16)
_COUNTED = {  # program: family, layout, expected GB sent by a GPU, and contents
    "A": ("naive model", Layout(pp=4, micro_batch=16), 1.07, "activations at each cut"),
    "B": ("tensor", Layout(tp=4, accumulation=16), 105, "sums of activations in each layer"),
    "C": ("data", Layout(dp=4, accumulation=4), 20.2, "gradients, as large as the weights"),
    "D": ("pipeline", _PIPELINED, 1.07, "activations at each cut"),
}
_LLAMA = MODELS["llama2-7b"]


def _second_sends(layout: Layout, shape: TransformerShape = _LLAMA) -> float:
    """Bytes that the second GPU of exercise 11.5 sends in an update."""
    job = Job(shape, Recipe(), layout, Cluster(accelerator("H100-SXM")), 4096)
    return step_traffic(job, stage=min(1, layout.pp - 1)).total_bytes


def _grows() -> tuple[dict[str, float], dict[str, float]]:
    """Factors by which each program's bytes grow with twice the sequences, and twice the layers."""
    samples, layers = {}, {}
    for name, (_, layout, gigabytes, _) in _COUNTED.items():
        sent = _second_sends(layout)
        assert abs(sent / 1e9 / gigabytes - 1) < 5e-3
        samples[name] = _second_sends(replace(layout, accumulation=2 * layout.accumulation)) / sent
        layers[name] = _second_sends(layout, replace(_LLAMA, layers=2 * _LLAMA.layers)) / sent
    return samples, layers


@exercise("11.5")
def _families(answer: Any) -> None:
    expect_parts(answer, 4, "three dicts and a number of micro-batches")
    right = {name: (family, f"it sends {what}") for name, (family, *_, what) in _COUNTED.items()}
    wants = "one of 'data', 'naive model', 'pipeline', 'tensor'"
    expect_entries(answer[0], right, "a dict of families", each=wants)
    for factors_given, grows in zip(answer[1:3], _grows(), strict=True):
        factors = {name: (each, f"it sends {_COUNTED[name][-1]}") for name, each in grows.items()}
        expect_entries(factors_given, factors, "a dict of factors", each="a factor", rel=0.05)
    fraction = bubble.bubble_fraction(4, _PIPELINED.accumulation)
    assert round(fraction, 3) == 0.158
    expect_number(answer[3], _PIPELINED.accumulation, "3 / (m + 3) is 15.8 %")


@exercise("11.6")
def _order(function: Any) -> None:
    reasons = {
        (3, 4, 3): "the last stage goes back at once",
        (0, 4, 6): "the first stage warms up with stages - 1 forward passes",
        (1, 4, 5): "each stage warms up with one pass less than the one before it",
        (0, 4, 2): "there are no more forward passes than micro-batches",
        (0, 1, 2): "one stage is the last one",
    }
    cases = []
    for sizes, because in reasons.items():
        order = schedules.one_f_one_b_order(*sizes)
        cases.append((sizes, [f"{work.kind}{work.micro_batch}" for work in order], because))
    expect_calls(function, cases, signature="one_f_one_b(stage, stages, micro_batches)")


@exercise("11.8")
def _slow_end(answer: Any) -> None:
    uneven = PassTimes((1, 1.5, 1, 1), (2, 3, 2, 2))
    expect_equal(
        answer,
        [timeline("1f1b", 4, m, times=uneven).makespan for m in (8, 64)],
        "13.5 for the first micro-batch, 4.5 for each later one, less a warm-up of 2 · 1.5",
        wants="two times",
        rel=1e-6,
    )


@exercise("11.9")
def _messages(answer: Any) -> None:
    def sent(**layout: Any) -> float:
        spread = Layout(pp=8, accumulation=64, **layout)
        job = Job(MODELS["gpt3-175b"], Recipe(), spread, Cluster(accelerator("H100-SXM")), 2048)
        return step_traffic(job, stage=1).bytes_by_axis["pp"]

    message_s = 2048 * 12288 * 2 / 25e9
    most = max(v for v in (1, 2, 3, 4, 6, 12) if message_s <= 0.05 * 12 / v * 19.3e-3)
    expect_equal(
        answer,
        [sent(), sent(schedule="interleaved", virtual_stages=2), most],
        "b·s·h numbers of 2 bytes, activations up and gradients down, from each chunk; 2.01 ms are "
        "5 % of 2.09 layers, so a chunk needs three",
        wants="two numbers of bytes and a number of chunks",
        rel=1e-6,
    )


_IN_PAIRS = ["F0", "F1", "B0", "B1", "F2", "F3", "B2", "B3"]
_ROOM = 3  # micro-batches on stage 1


@exercise("11.10")
def _hang(answer: Any) -> None:
    expect_parts(answer, 2, "two lists of passes such as 'F0'")
    for order in answer:
        expect_type(order, (list, tuple), "a list of passes such as 'F0'")
        if sorted(map(str, order)) != sorted(_IN_PAIRS):
            raise Wrong(f"wants each of {', '.join(_IN_PAIRS)} once, got {order!r}")
    orders = [[Pass(name[0], int(name[1:])) for name in order] for order in (*answer, _IN_PAIRS)]
    try:
        result = simulate(Schedule("corrected", 4, tuple(map(tuple, orders))), PassTimes())
    except Deadlock as error:
        raise Wrong(f"gave orders that still hang, expected an end: {error}") from None
    best = timeline("1f1b", 3, 4).makespan
    expect_number(result.makespan, best, "a longer warm-up hides stage 2's pairs", rel=1e-9)
    if result.in_flight(1) > _ROOM:
        raise Wrong(f"held {result.in_flight(1):g} micro-batches on stage 1, expected {_ROOM}")


BUILDS = (builds.PIPELINE,)
