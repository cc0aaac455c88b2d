"""The trace for chrome and Perfetto: valid by the fields that the format asks for."""

import json

import pytest
from probes import Probe

from course_lib.theory.memory.chrome_trace import chrome_trace

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


def test_lists_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"'weights' is .* and phases has 1 moments: give a list"):
        chrome_trace(PHASES[:1], SIZES)


def test_sizes_that_are_no_lists_are_refused():
    with pytest.raises(ValueError, match="'weights' is 4 and phases has 4 moments"):
        chrome_trace(PHASES, {"weights": 4})


PROBES = {
    "chrome_trace": Probe(
        chrome_trace,
        {"phases": PHASES, "sizes": SIZES},
        {"phases": ("forward",) * 4, "sizes": {"weights": (5, 4, 4, 4)}},
    ),
}
