"""Bytes by category over a step: against the theory, torch's ledger, and by hand."""

import gc
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_lib.measure.memory_over_time import CATEGORIES, LEFT_OVER, one_step, record_step
from course_lib.measure.peak import log_memory
from course_lib.scratch.checkpointing import cut
from course_lib.scratch.gpt import GPT, ledger
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.step_timeline import step_timeline

SHAPE = TransformerShape(layers=4, hidden=64, heads=4, ffn=256, vocab=128, context=64)
FP32 = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward", loss="eager")


def small_gpt(recompute):
    """A model, its optimizer, and 8 samples with their labels."""
    torch.manual_seed(0)
    model = GPT(4, 64, 4, 128, 64)
    if recompute == "full":
        cut(model, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return model, optimizer, *torch.randint(128, (2, 8, 64))


def measured():
    """The second update of a small GPT with 8 samples."""
    model, optimizer, inputs, labels = small_gpt("none")

    def loss():
        return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())

    return [one_step(model, optimizer, loss, [inputs, labels]) for _ in range(2)][-1]


def predicted(recompute="none", **more):
    recipe = Recipe(**vars(FP32) | {"recompute": recompute})
    layout = Layout(micro_batch=8, accumulation=more.pop("accumulation", 1))
    return step_timeline(Job(SHAPE, recipe, layout), overhead_bytes=0, **more)


def walked(recompute, accumulation):
    """An update, and of each moment of `step_timeline` where it begins and ends in the record."""
    model, optimizer, inputs, labels = small_gpt(recompute)
    cross_entropy(model(inputs).flatten(0, 1), labels.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    weights, blocks = [*model.parameters()], [*model.blocks]
    marks: list[int] = []
    with record_step(
        weights,
        [inputs, labels],
        lambda: [p.grad for p in weights if p.grad is not None],
        lambda: [it for state in optimizer.state.values() for it in state.values()],
    ) as record:
        born = len(record.changes)

        def mark(*_):
            marks.append(len(record.changes) - born)

        for part in [*blocks, model.norm]:  # what begins when the part before it has ended
            part.register_forward_pre_hook(mark)
        for block in blocks:
            block.register_full_backward_pre_hook(mark)
        blocks[0].register_full_backward_hook(mark)
        for _ in range(accumulation):
            record.phase("forward")
            loss = cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
            record.phase("backward")
            mark()
            loss.backward()
            del loss
        record.phase("update")
        mark()
        optimizer.step()
        mark()
        record.phase("update")
        model.zero_grad(set_to_none=True)
        mark()
    layers, each = len(blocks), 2 * len(blocks) + 3
    windows = []
    for first in range(0, each * accumulation, each):
        forward, backward = marks[first : first + layers + 2], marks[first : first + each]
        windows += [(at, at) for at in forward]
        windows += [*zip(backward[layers + 1 :], backward[layers + 2 :], strict=False)]
        windows.append(windows[-1])  # "layer 1" and "layer 1, end" are one layer's pass
    begin, stepped, end = marks[-3:]
    return record.result(), [*windows, (begin, stepped), (end, end)]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_moment_is_as_predicted(recompute, accumulation):
    """Every moment, not the largest alone: by the total, and by what is gradient."""
    found, windows = walked(recompute, accumulation)
    theory = predicted(recompute, accumulation=accumulation)
    boundary = 4 * 8 * 64 * 64  # what one layer hands to the next: theory has it with the next
    own = 4 * SHAPE.layer_parameters(0).total  # made and not yet in place: see `step_timeline`
    final_norm = 4 * 2 * 64  # comes before all layers, in theory with the embedding
    for step, (first, last) in zip(theory.steps, windows, strict=True):
        expected = step.bill.total_bytes
        more = max(found.totals[first : last + 1]) - expected
        most_more = boundary + own * (step.phase == "backward") + 0.01 * expected
        if step.what == "layer 1, end":  # theory has all gradients there, with all buffers
            assert -boundary <= more <= most_more
            continue
        assert 0 <= more <= most_more, step.what
        gradients = found.sizes["gradients"][first], step.bill.consumers["gradients"]
        assert 0 <= gradients[0] - gradients[1] <= final_norm, step.what


def test_the_peak_is_at_the_loss_and_made_of_what_theory_says():
    found, theory = measured(), predicted()
    place = found.totals.index(found.peak_bytes)
    assert (found.phases[0], found.phases[-1], found.allocated) == ("forward", "update", ())
    assert list(found.sizes) == list(CATEGORIES)
    assert (found.phases[place], found.moments[place]) == ("backward", "_log_softmax_backward_data")
    for name, sizes in found.sizes.items():
        expected = theory.peak.bill.consumers.get(name, 0)
        assert sizes[place] == pytest.approx(expected, rel=0.02, abs=1000), name


def test_each_moment_is_that_of_the_log_of_all_tensors():
    def step(kept):
        x = torch.ones(10, 4)
        kept.append(torch.zeros(7))
        model(x).sum().backward()
        model.zero_grad()

    model = nn.Linear(4, 3)
    with record_step(model.parameters(), [], list, list) as record:
        record.phase("forward")
        step(first := [])
    found = record.result()
    with log_memory(model.parameters()) as log:
        step(second := [])
    assert list(found.totals) == log.timeline
    assert found.sizes[LEFT_OVER][-1] == 28 == 4 * len(first[0]) == 4 * len(second[0])


def test_categories_are_those_of_the_ledger():
    model = GPT(2, 32, 4, 64, 16)
    tokens = torch.randint(64, (2, 16))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with record_step(
        model.parameters(),
        [tokens],
        lambda: [p.grad for p in model.parameters() if p.grad is not None],
        lambda: [it["momentum_buffer"] for it in optimizer.state.values()],
    ) as record:
        record.phase("forward")
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        record.phase("backward")
        loss.backward()
        record.phase("update")
        optimizer.step()
        del loss
    sizes = record.result().sizes
    for name, size in ledger(model, optimizer, [tokens]).items():
        assert sizes[name][-1] == size, name


def test_a_buffer_that_is_resized_is_temporary_even_where_it_is_saved():
    buffer = torch.ones(100)
    buffer.untyped_storage().resize_(0)
    with record_step([], [], list, list, buffers=[buffer]) as record:
        record.phase("forward")
        buffer.untyped_storage().resize_(400)
        result = buffer.fill_(2) * torch.ones(100, requires_grad=True)
        buffer.untyped_storage().resize_(0)
    sizes = record.result().sizes
    assert sizes["temporary buffers"][0] == 0 and max(sizes["temporary buffers"]) == 400
    assert sizes["intermediate results"][-1] == 0 and len(result) == 100


def live():
    gc.collect()
    return [it for it in gc.get_objects() if type(it) in (torch.Tensor, nn.Parameter)]


def test_no_tensor_is_kept_alive():
    before = live()  # kept, so that no new tensor gets the id of one of them
    found = measured()
    assert {id(it) for it in live()} <= {id(it) for it in before} and found.peak_bytes


@pytest.mark.parametrize("lets_go", [True, False])
def test_what_another_thread_still_holds_is_waited_for_and_not_for_ever(lets_go):
    """As gloo holds a message for a moment: a buffer that lives on is still told."""
    held = []
    with record_step([], [], list, list) as record:
        record.phase("update")
        held.append(torch.zeros(1000))
        other = threading.Timer(0.05, held.clear)
        if lets_go:
            other.start()
        record.settle(60 if lets_go else 0.1)
    assert max(record.result().sizes[LEFT_OVER]) == (0 if lets_go else 4000)
