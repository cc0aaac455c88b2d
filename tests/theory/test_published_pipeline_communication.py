"""Published bubbles, volumes, link times and speedups, case by case."""

import json
from pathlib import Path

import pytest
from every import every

from course_lib.theory.compute import budget
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network import collectives
from course_lib.theory.pipelines import bubble
from course_lib.theory.pipelines.bubble import PassTimes
from course_lib.theory.pipelines.simulation import timeline

PUBLISHED = Path(__file__).parent / "published"
CASES = [
    case
    for part in ("pipeline", "communication")
    for case in json.loads((PUBLISHED / f"{part}.json").read_text(encoding="utf-8"))
]


def bubbles(case):
    inputs = case["inputs"]
    if case["unit"] == "time units":
        return _bubble_time(case["id"].split(".")[1], inputs)
    sizes = inputs["stages"], inputs["microbatches"], inputs.get("virtual", 1)
    if case["unit"] == "fraction":
        return bubble.bubble_fraction(*sizes)
    return bubble.bubble_over_ideal(*sizes)


def _bubble_time(schedule, inputs):
    times = PassTimes(inputs["F"], inputs["B"], inputs["W"], inputs["FandB"])
    sizes = schedule, inputs["stages"], 4 * inputs["stages"]
    closed = bubble.bubble_time(*sizes, times=times)
    assert timeline(*sizes, times=times).bubble_time == pytest.approx(closed)
    return closed


def micro_batches_in_flight(case):
    inputs = case["inputs"]
    sizes = inputs["schedule"], inputs["stages"], inputs["microbatches"]
    counted = timeline(*sizes).in_flight(inputs["stage"])
    assert counted == bubble.in_flight(*sizes, inputs["stage"])
    return counted


def volumes(case):
    inputs, name = case["inputs"], case["id"].split(".", 1)[1]
    if name.startswith(("ring-allreduce", "allgather")):
        operation = "all-reduce" if "allreduce" in name else "all-gather"
        return collectives.sent_bytes(operation, inputs["size_bytes"], inputs["n"])
    if name == "zero3-vs-ddp":
        return collectives.zero_volume(1.0, 3) / collectives.zero_volume(1.0, 0)
    if name == "seed.pcie-4gb":
        return collectives.seconds(
            "send-recv", inputs["bytes"], 2, Link("link", inputs["bytes_per_s"])
        )
    sizes = inputs["micro_batch"], inputs["seq"], inputs["hidden"]
    if "tp" in inputs:
        return collectives.tensor_parallel_bytes(
            *sizes, inputs["tp"], element_bytes=inputs["bytes"]
        )
    return collectives.activation_bytes(*sizes, inputs["bytes"])


def reaches(case):
    inputs = case["inputs"]
    if "heads" in inputs:
        return collectives.matrix_intensity(inputs["hidden"], inputs["heads"], inputs["bytes"])
    if "flop_per_byte" in inputs:
        # peak / bandwidth = intensity: the bandwidth and the intensity can change places.
        return collectives.ridge(inputs["peak"], inputs["flop_per_byte"])
    reach = collectives.layer_tp_reach if "tp-layer" in case["id"] else collectives.matrix_tp_reach
    return reach(inputs["hidden"], inputs["peak"], inputs["bytes_per_s"])


def speedups(case):
    times = case["inputs"]["t_fsdp"], case["inputs"]["t_yafsdp"]
    gain = case["id"] == "yafsdp.throughput"
    part = budget.throughput_gain if gain else budget.saved_fraction
    return 100 * part(*times)


BY_CATEGORY = {
    "bubble": bubbles,
    "inflight": micro_batches_in_flight,
    "comm": volumes,
    "roofline": reaches,
    "yafsdp": speedups,
}


@every("case", CASES)
def test_published_number(case):
    relative = {"rel": case["tolerance"], "abs": 0}[case["tolerance_kind"]]
    absolute = {"rel": 0, "abs": case["tolerance"]}[case["tolerance_kind"]]
    computed = BY_CATEGORY[case["category"]](case)
    assert computed == pytest.approx(case["expected"], rel=relative, abs=absolute)


def test_nothing_is_left_out():
    assert len(CASES) == len({case["id"] for case in CASES}) == 31
    assert {case["category"] for case in CASES} == set(BY_CATEGORY)
