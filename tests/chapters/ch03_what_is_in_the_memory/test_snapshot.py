"""Snapshots: written so that torch takes them, read without trust, sorted, and as a trace.

Some are of steps by hand, others of a predicted step, and others of a real one.
"""

import dataclasses
import itertools
import json
import os
import pickle

import pytest
import torch
from every import every
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from course_lib.chapters.ch03_what_is_in_the_memory.memory_history import record_history
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
from course_lib.measure.peak import log_memory
from course_lib.measure.times import record
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs import Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory.step_timeline import step_timeline

SHAPE = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=128, context=64)
FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
RUN = step_timeline(Job(SHAPE, FP32, Layout(micro_batch=8)), overhead_bytes=0)
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
    BlockEvent("alloc", 3, 500, ()),  # fills what is left of the gap
)


def of(events):
    """What is read of a file with these events."""
    return read_snapshot(snapshot_pickle(list(events)))


def test_blocks_lie_in_the_first_gap_that_is_large_enough():
    content = parse_snapshot(snapshot_pickle(EVENTS))
    (segment,), (trace,) = content["segments"], content["device_traces"]
    assert [(it["address"] - segment["address"], it["state"]) for it in segment["blocks"]] == [
        (0, "active_allocated"),
        (512, "active_allocated"),
        (1024, "active_allocated"),
        (1024 + 3 * 2**20, "inactive"),
    ]
    assert segment["total_size"] == 4 * 2**20
    assert segment["allocated_size"] == 1024 + 3 * 2**20
    # The trace says what was asked for, and by whom.
    assert [it["action"] for it in trace] == [
        *("segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "alloc", "alloc")
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
            yield BlockEvent("alloc", most, leak, (MINE, *FORWARD))
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
    found = of(steps(4, threads=threads))
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
    assert {*found.phases} == {"setup", "forward", "backward", "update"}


def test_what_stays_for_two_rounds_only_is_no_leak():
    assert not of(steps(2, leak=600)).leaks
    ahead = of(steps(8, read_ahead=1))
    assert not ahead.leaks and max(ahead.sizes["inputs and labels"]) == 2 * 80


@every("recompute", ["none", "full"])
@every("accumulation", [1, 2])
def test_a_predicted_snapshot_is_sorted_as_it_was_predicted(recompute, accumulation):
    recipe = dataclasses.replace(FP32, recompute=recompute)
    layout = Layout(micro_batch=8, accumulation=accumulation)
    run = step_timeline(Job(SHAPE, recipe, layout))
    found = of(timeline_events(run))
    assert found.totals[-1] == run.steps[-1].bill.total_bytes
    assert max(found.totals) == run.peak_bytes
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


def test_the_device_with_most_events_is_read():
    content = parse_snapshot(snapshot_pickle(list(steps(2))))
    other = parse_snapshot(snapshot_pickle([BlockEvent("alloc", 0, 64, SETUP)]))
    for segment in other["segments"]:
        segment["device"] = 1
    both = {key: content[key] + other[key] for key in content}
    assert read_snapshot(pickle.dumps(both)).totals[-1] == 12000
    with pytest.raises(ValueError, match="the file has no events: call torch"):
        read_snapshot(pickle.dumps({"segments": [], "device_traces": [[]]}))


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
    found = of([BlockEvent("alloc", 0, 1, frames)])
    assert found.phases == (phase, phase)


# --- a real step ----------------------------------------------------------------------------------


def train(steps, kept):
    """Train a small GPT; the logits of each step go into `kept`, if that is a list."""
    model = GPT(2, 64, 4, 128, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens, labels = torch.randint(128, (8, 64)), torch.randint(128, (8, 64))
        logits = model(tokens).flatten(0, 1)
        loss = cross_entropy(logits, labels.flatten())
        loss.backward()
        if kept is not None:
            kept.append(logits.detach())
        del logits, loss
        optimizer.step()
        optimizer.zero_grad()


def history(kept, steps=5):
    with record_history() as recorded:
        train(steps, kept)
    return recorded.events


@pytest.fixture(scope="module")
def healthy():
    return history(None)


def test_the_peak_is_that_of_the_log_and_stacks_begin_with_the_innermost_call(healthy):
    with log_memory() as log:
        train(5, None)
    live = most = 0
    for action, _, size, _ in healthy:
        live += size if action == "alloc" else -size
        most = max(most, live)
    assert most == log.peak_bytes
    names = [[name for _, _, name in frames] for action, *_, frames in healthy if action == "alloc"]
    inside = next(it for it in names if "mix" in it)
    assert inside.index("mix") < inside.index("forward") < inside.index("train")


def test_a_real_step_is_sorted_as_theory_predicts_it(healthy):
    found = of(healthy)
    variable = {"intermediate results": 4 * 8 * 64 * 128}  # the logits, which `logits` holds on to
    for name in ("weights", "gradients", "optimizer", "intermediate results"):
        expected = max(RUN.sizes[name]) + variable.get(name, 0)
        assert max(found.sizes[name]) == pytest.approx(expected, rel=0.02), name
    # The next batch is made while the variables still hold the last one.
    assert max(found.sizes["inputs and labels"]) == 2 * max(RUN.sizes["inputs and labels"])
    peak = RUN.peak_bytes + sum(variable.values())
    assert max(found.totals) == pytest.approx(peak, rel=0.02)
    assert max(found.sizes[UNKNOWN]) < 10_000 and not found.leaks


def test_a_planted_leak_is_found_with_its_line():
    kept = []
    found = of(history(kept))
    (leak,) = found.leaks
    assert leak.size_bytes == sum(it.untyped_storage().nbytes() for it in kept)
    assert (leak.blocks, leak.rounds) == (5, 5)
    assert found.sizes[LEAK][-1] == leak.size_bytes
    line = next(frame.line for frame in leak.frames if frame.name == "train")
    assert leak.where == f"test_snapshot.py, line {line}, in train"
    cell = Frame("/tmp/ipykernel_17/3282299505.py", 7, "train")
    assert dataclasses.replace(leak, frames=(cell,)).where == "a cell, line 7, in train"
    assert leak.explain().startswith("leak: 5 blocks, ")
    assert leak.explain().endswith(f"born in 5 rounds and never freed, at {leak.where}")


@pytest.mark.torch_internals
def test_torch_s_own_viewers_take_our_files(healthy):
    from torch.cuda import _memory_viz as viz

    for name, events in {"measured": healthy, "predicted": timeline_events(RUN)}.items():
        data = snapshot_pickle(events)
        content = parse_snapshot(data)
        live = sum(e[2] if e[0] == "alloc" else -e[2] for e in events)
        assert "segments: 1" in viz.segsum(content)  # it checks that all bytes are accounted for
        births = sum(event[0] == "alloc" for event in events)
        assert viz.trace(content).count(" = seg_0[") + viz.trace(content).count("[") >= births
        flames: list[str] = []
        viz.memory(content, format_flamegraph=flames.append)
        lines = [line for line in flames[0].splitlines() if "active_allocated" in line]
        assert sum(int(line.rsplit(" ", 1)[1]) for line in lines if "<gaps>" not in line) == live
        for plot in (viz.trace_plot, viz.segment_plot):
            assert "MemoryViz.js" in plot(content)
        if name == "predicted":
            assert "intermediate results: layer 2" in str(content)
            assert "weights: embedding" in flames[0]


# --- a trace for other viewers --------------------------------------------------------------------


def test_the_trace_is_the_timeline_with_the_keys_of_torchs():
    theirs = record(lambda: torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum().backward())
    ours = json.loads(chrome_trace(RUN.phases, RUN.sizes))
    assert ours["displayTimeUnit"] == theirs["displayTimeUnit"]
    for kind in ("M", "X"):
        needed = set.intersection(*(set(it) for it in theirs["traceEvents"] if it["ph"] == kind))
        needed -= {"args"} if kind == "X" else set()  # what torch knows of an operator
        for event in ours["traceEvents"]:
            assert event["ph"] != kind or needed <= set(event)
    names = [
        {event["name"] for event in one["traceEvents"] if event["ph"] == "M"}
        for one in (ours, theirs)
    ]
    assert names[0] <= names[1]
    # It is the timeline read back.
    events, run = ours["traceEvents"], RUN
    counted = [event for event in events if event["ph"] == "C"]
    assert [event["ts"] for event in counted] == list(range(len(run.steps)))
    totals = [sum(event["args"].values()) for event in counted]
    assert totals == [step.bill.total_bytes for step in run.steps]
    # One bar after the other without a hole, for as long as there are moments.
    bars = [event for event in events if event["ph"] == "X"]
    ends = [event["ts"] + event["dur"] for event in bars]
    assert [event["ts"] for event in bars] == [0, *ends[:-1]]
    assert ends[-1] == len(run.steps) and len(bars) == 3
