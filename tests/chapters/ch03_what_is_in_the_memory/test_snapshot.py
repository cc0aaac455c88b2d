"""Snapshots sorted into the consumers: those of a prediction, and one with a planted leak."""

import dataclasses
import pickle

import pytest
from every import every
from probes import Probe, by_name

from course_lib.chapters.ch03_what_is_in_the_memory.snapshot import (
    CATEGORIES,
    LEAK,
    UNKNOWN,
    read_snapshot,
)
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

SHAPE = TransformerShape(layers=3, hidden=64, heads=4, ffn=256, vocab=128, context=64)
FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
FORWARD = (Frame("site-packages/torch/nn/modules/module.py", 1, "_call_impl"),)
BACKWARD = (Frame("site-packages/torch/_tensor.py", 2, "backward"),)
UPDATE = (Frame("site-packages/torch/optim/adamw.py", 3, "step"),)
SETUP = (Frame("site-packages/torch/nn/modules/module.py", 4, "_apply"),)
LIBRARY = Frame("/opt/site-packages/torch/x.py", 1, "add")
MINE = Frame("/home/me/train.py", 12, "run")


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
    Probe(read_snapshot, {"data": pickle.dumps(TWO)}, {"data": DATA[1], "device": 1}, refuses=True),
    Probe(FOUND[0].explain, {}, {"unit": "GiB"}),
)
RECORDS = {"Snapshot": FOUND, "Leak": [*LEAKS, OTHER]}
