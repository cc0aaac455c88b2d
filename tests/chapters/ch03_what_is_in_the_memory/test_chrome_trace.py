"""The trace for chrome and Perfetto: by the format's fields, and beside one of torch.profiler."""

import json
import time
from collections import defaultdict
from itertools import groupby

import pytest
from probes import Probe, by_name

from course_lib.chapters.ch03_what_is_in_the_memory.chrome_trace import chrome_trace
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.memory.step_timeline import step_timeline

PHASES = ("forward", "forward", "backward", "update")
SIZES = {"weights": (4, 4, 4, 4), "gradients": (0, 0, 4, 4)}


def test_the_trace_has_the_fields_of_the_format():
    trace = json.loads(chrome_trace(PHASES, SIZES))
    needed = {
        "M": {"name", "ph", "pid", "args"},
        "X": {"name", "ph", "ts", "dur", "pid", "tid"},
        "C": {"name", "ph", "ts", "pid", "args"},
    }
    for event in trace["traceEvents"]:
        assert needed[event["ph"]] <= set(event)
    bars = [(it["name"], it["ts"], it["dur"]) for it in trace["traceEvents"] if it["ph"] == "X"]
    assert bars == [("forward", 0, 2), ("backward", 2, 1), ("update", 3, 1)]
    counted = [it["args"] for it in trace["traceEvents"] if it["ph"] == "C"]
    assert counted[2] == {"weights": 4, "gradients": 4} and len(counted) == 4


def bars_by_lane(trace):
    """(start, end) of all bars, by process and thread."""
    lanes = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lane = lanes[event["pid"], event["tid"]]
            lane.append((event["ts"], event["ts"] + event["dur"]))
    return {name: sorted(bars, key=lambda bar: (bar[0], -bar[1])) for name, bars in lanes.items()}


def nested(bars, slack=0.0):
    """Whether of any two bars one lies in the other, or after it; viewers draw them so."""
    open_ends = []
    for start, end in bars:
        while open_ends and open_ends[-1] <= start + slack:
            open_ends.pop()
        if open_ends and end > open_ends[-1] + slack:
            return False
        open_ends.append(end)
    return True


@pytest.fixture(scope="module")
def torchs():
    """What torch.profiler writes of a pass in which somebody sleeps for 20 ms."""
    torch = pytest.importorskip("torch")
    from course_lib.measure.times import record

    def sleep():
        with torch.profiler.record_function("outer"):
            with torch.profiler.record_function("nap"):
                time.sleep(0.02)
            torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward()

    return record(sleep)


@pytest.fixture(scope="module")
def run():
    return step_timeline(Job(MODELS["gpt2-124m"], layout=Layout(micro_batch=4, accumulation=2)))


def test_events_have_the_keys_of_torchs(torchs, run):
    ours = json.loads(chrome_trace(run.phases, run.sizes))
    assert ours["displayTimeUnit"] == torchs["displayTimeUnit"]
    for kind in ("M", "X"):
        theirs = [event for event in torchs["traceEvents"] if event["ph"] == kind]
        needed = set.intersection(*map(set, theirs))
        needed -= {"args"} if kind == "X" else set()  # what torch knows of an operator
        for event in ours["traceEvents"]:
            assert event["ph"] != kind or needed <= set(event)
    names = {event["name"] for event in torchs["traceEvents"] if event["ph"] == "M"}
    assert {event["name"] for event in ours["traceEvents"] if event["ph"] == "M"} <= names


def test_bars_nest_in_each_lane_of_both(torchs, run):
    theirs = bars_by_lane(torchs)
    assert theirs and all(nested(bars, slack=0.01) for bars in theirs.values())  # of a µs
    (bars,) = bars_by_lane(json.loads(chrome_trace(run.phases, run.sizes))).values()
    assert nested(bars)
    # More than that: one after the other, without a hole, as long as there are moments.
    assert [start for start, _ in bars] == [0, *(end for _, end in bars[:-1])]
    assert bars[-1][1] == len(run.steps) and len(bars) == len(list(groupby(run.phases))) == 5


def test_torchs_times_are_microseconds_as_ours(torchs):
    (nap,) = (event for event in torchs["traceEvents"] if event["name"] == "nap")
    assert nap["ph"] == "X" and 20_000 <= nap["dur"] < 20_000_000


def test_read_back_it_is_the_timeline(run):
    counted = [
        event for event in json.loads(chrome_trace(run.phases, run.sizes))["traceEvents"]
        if event["ph"] == "C"
    ]  # fmt: skip
    assert [event["ts"] for event in counted] == list(range(len(run.steps)))
    totals = [sum(event["args"].values()) for event in counted]
    assert totals == [step.bill.total_bytes for step in run.steps]
    assert max(totals) == run.peak_bytes


def test_bars_that_cross_do_not_nest():
    assert nested([(0, 9), (1, 4), (4, 9), (9, 10)]) and not nested([(0, 5), (3, 8)])


REFUSED = [
    (
        lambda: chrome_trace(PHASES[:1], SIZES),
        r"'weights' is .* and phases has 1 moments: give a list",
    ),
    (lambda: chrome_trace(PHASES, {"weights": 4}), "'weights' is 4 and phases has 4 moments"),
]
PROBES = by_name(
    Probe(
        chrome_trace,
        {"phases": PHASES, "sizes": SIZES},
        {"phases": ("forward",) * 4, "sizes": {"weights": (5, 4, 4, 4)}},
    ),
)
