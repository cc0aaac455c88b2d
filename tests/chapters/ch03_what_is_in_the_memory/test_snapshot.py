"""Snapshots: written so that torch takes them, read without trust, sorted, and as a trace."""

import dataclasses
import itertools
import json
import os
import pickle

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st
from probes import Probe, by_name
from refused import rows

from course_lib.chapters.ch03_what_is_in_the_memory.snapshot import (
    CATEGORIES,
    LEAK,
    UNKNOWN,
    BlockEvent,
    Frame,
    chrome_trace,
    parse_snapshot,
    read_snapshot,
    snapshot_pickle,
    timeline_events,
)
from course_lib.theory.inputs import MODELS, Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory.step_timeline import step_timeline

SHAPE = TransformerShape(layers=3, hidden=64, heads=4, ffn=256, vocab=128, context=64)
FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
RUN = step_timeline(Job(SHAPE, FP32, Layout(micro_batch=8)))
MINE = Frame("/home/me/train.py", 12, "run")
FORWARD = (Frame("site-packages/torch/nn/modules/module.py", 1, "_call_impl"),)
BACKWARD = (Frame("site-packages/torch/_tensor.py", 2, "backward"),)
UPDATE = (Frame("site-packages/torch/optim/adamw.py", 3, "step"),)
SETUP = (Frame("site-packages/torch/nn/modules/module.py", 4, "_apply"),)
EVENTS = (
    BlockEvent("alloc", 0, 1000, (MINE,)),
    BlockEvent("alloc", 1, 3 * 2**20, ()),
    BlockEvent("free", 0, 1000, (MINE,)),
    BlockEvent("alloc", 2, 512, (MINE,)),
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
    assert (trace[1]["size"], trace[1]["frames"]) == (1000, [MINE._asdict()])


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


def steps(count, leak=0, threads=False, read_ahead=0):
    """Some steps of a model by hand; `threads`: autograd's own thread, without a Python stack."""
    back = () if threads else BACKWARD
    yield BlockEvent("alloc", 0, 4000, SETUP)
    number, batches = 1, []
    for step in range(count):
        while len(batches) <= read_ahead:
            batches.append(number)
            yield BlockEvent("alloc", number, 80, (MINE,))
            number += 1
        activation, workspace, gradient, inside, state, most = range(number, number + 6)
        number += 6
        yield BlockEvent("alloc", activation, 700, (*FORWARD, MINE))
        yield BlockEvent("alloc", workspace, 30, FORWARD)
        yield BlockEvent("free", workspace, 30, FORWARD)
        if leak:
            yield BlockEvent(
                "alloc",
                most,
                leak,
                (Frame("/opt/site-packages/torch/x.py", 1, "add"), MINE, *FORWARD),
            )
        yield BlockEvent("alloc", inside, 50, back)
        yield BlockEvent("alloc", gradient, 4000, back)
        yield BlockEvent("free", activation, 700, back)
        yield BlockEvent("free", inside, 50, back)
        if step == 0:
            yield BlockEvent("alloc", state, 8000, UPDATE)
        yield BlockEvent("free", gradient, 4000, UPDATE)
        yield BlockEvent("free", batches.pop(0), 80, (MINE,))


@every("threads", [False, True])
def test_each_block_is_what_its_birth_and_death_say(threads):
    found = read_snapshot(snapshot_pickle(list(steps(4, threads=threads))))
    most = {name: max(sizes) for name, sizes in found.sizes.items()}
    assert most == dict.fromkeys(CATEGORIES, 0) | {
        "weights": 4000,
        "gradients": 4000,
        "optimizer": 8000,
        "inputs and labels": 80,
        "intermediate results": 700,
        "temporary buffers": 50,
    }
    assert not found.leaks and found.totals[-1] == 12000
    assert [it for it in found.phases if it not in ("setup", "forward", "backward", "update")] == []


def test_a_planted_leak_is_found_with_its_line():
    found = read_snapshot(snapshot_pickle(list(steps(5, leak=600))))
    (leak,) = found.leaks
    assert (leak.blocks, leak.rounds, leak.size_bytes) == (5, 5, 3000)
    assert leak.where == "train.py, line 12, in run"
    cell = Frame("/tmp/ipykernel_17/3282299505.py", 7, "train")
    assert dataclasses.replace(leak, frames=(cell,)).where == "a cell, line 7, in train"
    assert found.sizes[LEAK][-1] == 3000
    assert found.explain().splitlines()[-1] == (
        "leak: 5 blocks, 3.00 kB, born in 5 rounds and never freed, at train.py, line 12, in run"
    )


@every(("count", "read_ahead"), [(2, 0), (8, 1)])
def test_what_stays_for_two_rounds_only_is_no_leak(count, read_ahead):
    found = read_snapshot(snapshot_pickle(list(steps(count, leak=600 * (count == 2)))))
    assert not found.leaks
    ahead = read_snapshot(snapshot_pickle(list(steps(count, read_ahead=read_ahead))))
    assert not ahead.leaks and max(ahead.sizes["inputs and labels"]) == 80 * (1 + read_ahead)


@every("recompute", ["none", "full"])
@every("accumulation", [1, 2])
def test_a_predicted_snapshot_is_sorted_as_it_was_predicted(recompute, accumulation):
    recipe = dataclasses.replace(FP32, recompute=recompute)
    layout = Layout(micro_batch=8, accumulation=accumulation)
    run = step_timeline(Job(SHAPE, recipe, layout))
    found = read_snapshot(snapshot_pickle(timeline_events(run)))
    predicted = {name: size for name, size in run.peak.bill.consumers.items() if size}
    assert {name: size for name, size in found.at_peak.items() if size} == predicted
    for name, sizes in run.sizes.items():
        assert max(found.sizes[name]) == max(sizes), name


def test_what_was_there_before_the_trace_is_not_known_unless_its_stack_says():
    content = parse_snapshot(snapshot_pickle(list(steps(3))))
    content["device_traces"][0] = content["device_traces"][0][-4:]
    found = read_snapshot(pickle.dumps(content))
    assert found.sizes["weights"][0] == 4000 and found.sizes["optimizer"][0] == 8000
    for block in content["segments"][0]["blocks"]:
        block["frames"] = []
    found = read_snapshot(pickle.dumps(content))
    assert found.sizes[UNKNOWN][-1] == 12000
    assert found.totals[0] == 12000 + 4000 + 80


def test_the_device_with_most_events_is_read_and_another_by_its_number():
    content = parse_snapshot(snapshot_pickle(list(steps(2))))
    other = parse_snapshot(snapshot_pickle([BlockEvent("alloc", 0, 64, SETUP)]))
    for segment in other["segments"]:
        segment["device"] = 1
    both = {key: content[key] + other[key] for key in content}
    data = pickle.dumps(both)
    assert read_snapshot(data).totals[-1] == 12000
    assert read_snapshot(data, device=1).totals[-1] == 64
    with pytest.raises(ValueError, match="device 2 has no events: call torch"):
        read_snapshot(data, device=2)


@every(
    ("frames", "phase"),
    [
        (FORWARD, "forward"),
        ((*FORWARD, *BACKWARD), "backward"),  # recomputation
        (UPDATE, "update"),
        ((Frame("a/master.py", 1, "adamw_update"),), "update"),
        ((Frame("torch/nn/modules/module.py", 1, "zero_grad"),), "update"),
        (SETUP, "setup"),
        ((Frame("", 0, "torch::autograd::Engine::thread_main"),), "backward"),
        ((Frame("/home/optimus/train.py", 1, "main"),), "setup"),  # still what it was
        ((), "setup"),
    ],
)
def test_the_phase_of_a_stack(frames, phase):
    found = read_snapshot(snapshot_pickle([BlockEvent("alloc", 0, 1, frames)]))
    assert found.phases == (phase, phase)


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


def test_events_have_the_keys_of_torchs():
    torch = pytest.importorskip("torch")
    from course_lib.measure.times import record

    theirs = record(lambda: torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward())
    ours = json.loads(chrome_trace(RUN.phases, RUN.sizes))
    assert ours["displayTimeUnit"] == theirs["displayTimeUnit"]
    for kind in ("M", "X"):
        needed = set.intersection(*(set(it) for it in theirs["traceEvents"] if it["ph"] == kind))
        needed -= {"args"} if kind == "X" else set()  # what torch knows of an operator
        for event in ours["traceEvents"]:
            assert event["ph"] != kind or needed <= set(event)
    ours, theirs = (
        {event["name"] for event in one["traceEvents"] if event["ph"] == "M"}
        for one in (ours, theirs)
    )
    assert ours <= theirs


def test_the_trace_is_the_timeline_read_back():
    run = step_timeline(Job(MODELS["gpt2-124m"], layout=Layout(micro_batch=4, accumulation=2)))
    events = json.loads(chrome_trace(run.phases, run.sizes))["traceEvents"]
    counted = [event for event in events if event["ph"] == "C"]
    assert [event["ts"] for event in counted] == list(range(len(run.steps)))
    totals = [sum(event["args"].values()) for event in counted]
    assert totals == [step.bill.total_bytes for step in run.steps]
    # One bar after the other without a hole, for as long as there are moments.
    bars = [event for event in events if event["ph"] == "X"]
    ends = [event["ts"] + event["dur"] for event in bars]
    assert [event["ts"] for event in bars] == [0, *ends[:-1]]
    assert ends[-1] == len(run.steps) and len(bars) == 5


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
    (
        lambda: chrome_trace(PHASES[:1], SIZES),
        r"'weights' is .* and phases has 1 moments: give a list",
    ),
]

DATA = [
    snapshot_pickle(list(steps(5, leak=600))),
    snapshot_pickle(list(steps(3))),
    snapshot_pickle([BlockEvent("alloc", 0, 2**23, (MINE,))]),
]
FOUND = [read_snapshot(data) for data in DATA]
TWO = parse_snapshot(DATA[0])
TWO["device_traces"].append(parse_snapshot(DATA[1])["device_traces"][0])
LEAKS = [
    *FOUND[0].leaks,
    *read_snapshot(snapshot_pickle([*steps(4, leak=7)][1:])).leaks,
]
OTHER = dataclasses.replace(LEAKS[0], frames=())
PROBES = by_name(
    Probe(parse_snapshot, {"data": snapshot_pickle(EVENTS)}, {"data": snapshot_pickle(EVENTS[:2])}),
    Probe(snapshot_pickle, {"events": EVENTS}, {"events": EVENTS[:3]}),
    Probe(timeline_events, {"run": RUN}, {"run": dataclasses.replace(RUN, steps=RUN.steps[:1])}),
    Probe(read_snapshot, {"data": pickle.dumps(TWO)}, {"data": DATA[1], "device": 1}, refuses=True),
    Probe(FOUND[0].explain, {}, {"unit": "GiB"}),
    Probe(
        chrome_trace,
        {"phases": PHASES, "sizes": SIZES},
        {"phases": ("forward",) * 4, "sizes": {"weights": (5, 4, 4, 4)}},
    ),
)
RECORDS = {
    "Snapshot": FOUND,
    "Leak": [*LEAKS, OTHER],
    "BlockEvent": list(timeline_events(RUN)),
    "Frame": [MINE, *BACKWARD],
}
