"""Snapshot files: written so that torch's own reader takes them, and read without trust."""

import itertools
import os
import pickle
from dataclasses import replace

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import Probe, by_name
from refused import rows

from course_lib.chapters.ch03_what_is_in_the_memory.snapshot_file import (
    BlockEvent,
    Frame,
    parse_snapshot,
    snapshot_pickle,
    timeline_events,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.step_timeline import step_timeline

SHAPE = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=128, context=64)
FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
RUN = step_timeline(Job(SHAPE, FP32, Layout(micro_batch=8)))
FRAME = Frame("train.py", 3, "step")
EVENTS = (
    BlockEvent("alloc", 0, 1000, (FRAME,)),
    BlockEvent("alloc", 1, 3 * 2**20, ()),
    BlockEvent("free", 0, 1000, (FRAME,)),
    BlockEvent("alloc", 2, 512, (FRAME,)),
)


def test_blocks_lie_in_the_first_gap_that_is_large_enough():
    (segment,) = parse_snapshot(snapshot_pickle(EVENTS))["segments"]
    assert [(it["address"] - segment["address"], it["state"]) for it in segment["blocks"]] == [
        (0, "active_allocated"),
        (512, "inactive"),
        (1024, "active_allocated"),
        (1024 + 3 * 2**20, "inactive"),
    ]
    assert segment["total_size"] == 4 * 2**20 == sum(it["size"] for it in segment["blocks"])
    assert segment["allocated_size"] == 512 + 3 * 2**20


def test_the_trace_says_what_was_asked_for_and_by_whom():
    (trace,) = parse_snapshot(snapshot_pickle(EVENTS))["device_traces"]
    assert [it["action"] for it in trace] == [
        *("segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "alloc")
    ]
    assert (trace[1]["size"], trace[1]["frames"]) == (1000, [FRAME._asdict()])


@st.composite
def histories(draw):
    live, events = [], []
    for number in range(draw(st.integers(1, 30))):
        if live and draw(st.booleans()):
            block, size = live.pop(draw(st.integers(0, len(live) - 1)))
            events.append(BlockEvent("free", block, size))
        else:
            size = draw(st.integers(0, 10**7))
            live.append((number, size))
            events.append(BlockEvent("alloc", number, size))
    return events, live


@given(histories())
def test_blocks_never_overlap_and_all_memory_is_accounted_for(history):
    events, live = history
    content = parse_snapshot(snapshot_pickle(events))
    (segment,) = content["segments"]
    places = [(it["address"], it["address"] + it["size"]) for it in segment["blocks"]]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(places))
    assert places[0][0] == segment["address"]
    assert places[-1][1] == segment["address"] + segment["total_size"]
    active = [it for it in segment["blocks"] if it["state"] == "active_allocated"]
    assert sorted(it["requested_size"] for it in active) == sorted(size for _, size in live)
    held = {}
    for entry in content["device_traces"][0][1:]:
        place = (entry["addr"], entry["addr"] + max(entry["size"], 1))
        if entry["action"] == "alloc":
            assert all(place[1] <= low or high <= place[0] for low, high in held.values())
            held[entry["addr"]] = place
        elif entry["action"] == "free_completed":
            del held[entry["addr"]]


def test_a_predicted_step_is_a_file_whose_blocks_are_its_bytes():
    blocks, live, most = {}, 0, 0
    for event in timeline_events(RUN):
        blocks[event.block] = event.size_bytes
        live += event.size_bytes if event.action == "alloc" else -event.size_bytes
        most = max(most, live)
    assert most == RUN.peak_bytes
    assert live == RUN.steps[-1].bill.total_bytes
    first = timeline_events(RUN)[0]
    assert first.frames[0].name == "weights: embedding"


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/this_must_not_be",)


@every(
    ("data", "words"),
    [
        (pickle.dumps(Evil()), "system', which would run code"),
        (pickle.dumps({"segments": [Evil()], "device_traces": []}), "would run code"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "asks for 'builtins.eval'"),
        (pickle.dumps(Frame), "would run code"),
        (b"", "the file is no pickle"),
        (b"\x80\x04garbage", "the file is no pickle"),
        (pickle.dumps([1, 2]), "but no memory snapshot: write it with"),
        (pickle.dumps({"segments": [3], "device_traces": []}), "but no memory snapshot"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": 1}]]}), "no memory snapshot"),
        (pickle.dumps({"segments": [{"blocks": [{}]}], "device_traces": []}), "no memory snapshot"),
    ],
)
def test_what_is_no_snapshot_is_refused_and_nothing_runs(data, words):
    with pytest.raises(ValueError, match=words) as refused:
        parse_snapshot(data)
    assert "\n" not in str(refused.value)
    assert not os.path.exists("/tmp/this_must_not_be")


SMALLER = replace(RUN, steps=RUN.steps[:1])
REFUSED = [
    *rows(
        snapshot_pickle,
        [
            ([BlockEvent("free", 0, 1)], "block 0 dies before it is born: allocate"),
            ([BlockEvent("alloc", 0, 1)] * 2, "block 0 is born twice: free"),
            ([("alloc", 0)], "is not \\(action, block, bytes, frames\\): give four"),
            ([BlockEvent("alloc", 0, 1, ((1, 2),))], "each frame as"),
            ([BlockEvent("born", 0, 1)], "action"),
            ([BlockEvent("alloc", 0, -1)], "size_bytes must be at least 0"),
        ],
    ),
]
PROBES = by_name(
    Probe(parse_snapshot, {"data": snapshot_pickle(EVENTS)}, {"data": snapshot_pickle(EVENTS[:2])}),
    Probe(snapshot_pickle, {"events": EVENTS}, {"events": EVENTS[:3]}),
    Probe(timeline_events, {"run": RUN}, {"run": SMALLER}),
)
RECORDS = {
    "BlockEvent": list(timeline_events(RUN)),
    "Frame": [FRAME, Frame("torch/_tensor.py", 9, "backward")],
}
