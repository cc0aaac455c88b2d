"""Who asked for memory: the stacks of a real run, and torch's own reader of our snapshots."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from course_lib.chapters.ch03_what_is_in_the_memory.memory_history import record_history
from course_lib.chapters.ch03_what_is_in_the_memory.snapshot import (
    LEAK,
    UNKNOWN,
    parse_snapshot,
    read_snapshot,
    snapshot_pickle,
    timeline_events,
)
from course_lib.measure.peak import log_memory
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs import Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory.step_timeline import step_timeline

SHAPE = TransformerShape(layers=2, hidden=64, heads=4, ffn=256, vocab=128, context=64)


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


def test_the_peak_is_that_of_the_log_of_all_tensors(healthy):
    with log_memory() as log:
        train(5, None)
    live = most = 0
    for action, _, size, _ in healthy:
        live += size if action == "alloc" else -size
        most = max(most, live)
    assert most == log.peak_bytes


def test_a_stack_begins_with_the_innermost_call(healthy):
    names = [[name for _, _, name in frames] for action, *_, frames in healthy if action == "alloc"]
    inside = next(it for it in names if "mix" in it)
    assert inside.index("mix") < inside.index("forward") < inside.index("train")


def test_a_real_step_is_sorted_as_theory_predicts_it(healthy):
    found = read_snapshot(snapshot_pickle(healthy))
    recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")
    run = step_timeline(Job(SHAPE, recipe, Layout(micro_batch=8)), overhead_bytes=0)
    variable = {"intermediate results": 4 * 8 * 64 * 128}  # the logits, which `logits` holds on to
    for name in ("weights", "gradients", "optimizer", "intermediate results"):
        expected = max(run.sizes[name]) + variable.get(name, 0)
        assert max(found.sizes[name]) == pytest.approx(expected, rel=0.02), name
    # The next batch is made while the variables still hold the last one.
    assert max(found.sizes["inputs and labels"]) == 2 * max(run.sizes["inputs and labels"])
    peak = run.peak_bytes + sum(variable.values())
    assert max(found.totals) == pytest.approx(peak, rel=0.02)
    assert max(found.sizes[UNKNOWN]) < 10_000 and not found.leaks


def test_a_planted_leak_is_found_with_its_function():
    kept = []
    found = read_snapshot(snapshot_pickle(history(kept)))
    (leak,) = found.leaks
    assert leak.size_bytes == sum(it.untyped_storage().nbytes() for it in kept)
    assert (leak.blocks, leak.rounds) == (5, 5)
    assert found.sizes[LEAK][-1] == leak.size_bytes


@pytest.mark.torch_internals
def test_torch_s_own_viewers_take_our_files(healthy):
    from torch.cuda import _memory_viz as viz

    recipe = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward")
    run = step_timeline(Job(SHAPE, recipe, Layout(micro_batch=8)), overhead_bytes=0)
    for name, events in {"measured": healthy, "predicted": timeline_events(run)}.items():
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
