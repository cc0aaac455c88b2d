"""Segments: the bill by hand, what scratch's segments keep, and the sum behind "40 times"."""

from dataclasses import replace

import torch
from probes import FULL

from course_lib.chapters.ch04_activations.segments import runs_again, segment_bill
from course_lib.measure.gradients import saved_bytes
from course_lib.scratch.checkpointing import cut
from course_lib.scratch.gpt import GPT
from course_lib.theory.inputs import MODELS, Job, Layout, Recipe, TransformerShape
from course_lib.theory.memory.activations import layer_activation_bytes

LLAMA = Job(MODELS["llama2-70b"], FULL, sequence=4096)


def test_one_input_for_each_segment_and_one_segment_alive():
    inside = layer_activation_bytes(replace(LLAMA, recipe=Recipe()))
    for segment, inputs in ((1, 80), (3, 27), (80, 1)):
        bill = segment_bill(LLAMA, segment)
        assert bill.inputs_bytes == inputs * layer_activation_bytes(LLAMA)
        assert bill.alive_bytes == segment * (inside if segment else 0)
        assert bill.total_bytes == bill.inputs_bytes + bill.alive_bytes


def test_the_inputs_are_those_that_our_segments_keep():
    """Against the course's own checkpointing: what segments of 1 keep beyond segments of 6."""
    tokens = torch.zeros(2, 32, dtype=torch.int64)
    kept = {}
    for segment in (1, 2, 3, 6):
        torch.manual_seed(0)
        model = cut(GPT(layers=6, hidden=32, heads=2, vocab=64, context=32), segment)
        kept[segment] = saved_bytes(lambda model=model: model(tokens).sum(), model)
    shape = TransformerShape(6, 32, 2, 128, 64, 32)
    fp32 = Recipe("fp32", "fp32", master_copy=False, recompute="full")
    job = Job(shape, fp32, Layout(micro_batch=2), sequence=32)
    for segment in kept:
        more = segment_bill(job, segment).inputs_bytes - segment_bill(job, 6).inputs_bytes
        assert kept[segment] - kept[6] == more


def test_the_fortyfold():
    assert sum(map(len, runs_again(80, 80))) == 3240 == 80 * 81 // 2
    assert sum(map(len, runs_again(80, 1))) == 80
    assert runs_again(4, 2) == (range(1), range(2), range(2, 3), range(2, 4))


REFUSED = [
    (
        lambda: segment_bill(replace(LLAMA, recipe=Recipe()), 1),
        "recompute must be 'full', got 'none': take it",
    )
]
