"""The replay of a stage against real passes: every tensor's birth and death is followed."""

import pytest
import torch
from every import every

from course_lib.chapters.ch13_3d_planning.replay import memory_timeline
from course_lib.measure.peak import log_memory
from course_lib.scratch.gpt import Block
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import OVERHEAD_BYTES
from course_lib.theory.pipelines.schedules import stage_order

SHAPE = TransformerShape(16, 128, 4, 512, 64, 64)
RECIPE = Recipe("fp32", "fp32", master_copy=False, gradient_life="backward")
SAMPLES, STAGE = 8, 1  # neither embedding nor head


def measured(layout):
    """Bytes after each pass of one stage that runs its chunks in the order of the schedule."""
    each = SHAPE.layers // layout.chunks
    chunks = [
        torch.nn.Sequential(*(Block(SHAPE.hidden, SHAPE.heads) for _ in range(each)))
        for _ in range(layout.virtual_stages)
    ]
    order = stage_order(
        layout.schedule,
        STAGE,
        layout.pp,
        layout.accumulation,
        virtual_stages=layout.virtual_stages,
        group=layout.group,
    )
    outputs, after = {}, []
    parameters = [it for chunk in chunks for it in chunk.parameters()]
    with log_memory(parameters) as log:
        for kind, micro_batch, chunk, _ in order:
            if kind == "F":
                received = torch.randn(SAMPLES, SHAPE.context, SHAPE.hidden)
                outputs[micro_batch, chunk] = chunks[chunk](received.requires_grad_())
                del received
            else:
                output = outputs.pop((micro_batch, chunk))
                output.backward(torch.ones(()).expand_as(output))
                del output
            after.append(log.timeline[-1])
    return after


@every(
    "sizes",
    [
        {"schedule": "1f1b", "accumulation": 6},
        {"schedule": "gpipe", "accumulation": 4},
        {"schedule": "interleaved", "virtual_stages": 2, "accumulation": 4},
        {"schedule": "interleaved", "virtual_stages": 2, "accumulation": 7, "group": 7},
        {"schedule": "interleaved", "virtual_stages": 4, "accumulation": 9, "group": 5},
    ],
)
def test_bytes_after_every_pass_are_those_of_a_stage(sizes):
    layout = Layout(pp=4 if "group" not in sizes else 2, micro_batch=SAMPLES, **sizes)
    layout = Layout(**vars(layout) | {"keep_outputs": True})
    run = memory_timeline(Job(SHAPE, RECIPE, layout), STAGE)
    # None of these is here.
    others = run.always.optimizer_state_bytes + run.always.bucket_bytes + OVERHEAD_BYTES
    always = run.always.total_bytes - others
    predicted = [always + it.activations_bytes + it.gradients_bytes for it in run.passes]
    assert predicted == pytest.approx(measured(layout), rel=0.01)
