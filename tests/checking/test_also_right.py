"""Answers that are right in another form, or as far as the theory can tell, are taken."""

import pytest
import torch

from course_lib.checking.exercises import find
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Job, Layout, Recipe
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.step import step_time
from course_lib.theory.step.assumptions import Assumptions


def _cut_loss_in_fp32(parts, label):
    """The loss as a learner writes it in torch: every number in fp32."""
    tensors = [torch.tensor(part) for part in parts]
    top = torch.stack([part.max() for part in tensors]).max()
    total = sum(torch.exp(part - top).sum() for part in tensors)
    return (top + torch.log(total) - torch.cat(tensors)[label]).item()


def _standard_plan():
    """TP 8, PP 4, DP 4, ZeRO-1, and how far it is from the fastest when more hides."""
    layout = Layout(tp=8, pp=4, dp=4, accumulation=64, sequence_parallel=True, zero_stage=1)
    shape, recipe, cluster = MODELS["llama3-70b"], Recipe(), Cluster(accelerator("H100-SXM"), 16)
    hides = {"tp": 0.5, "dp": 0.8}
    assumed = Assumptions(overlap=hides)
    plan = planner.plan(shape, recipe, cluster, 256, sequence=8192, assumptions=assumed)
    mine = step_time.step_time(Job(shape, recipe, layout, cluster, 8192), assumed)
    return [layout, hides, mine.total_s / plan.best(1)[0].step_s]


RIGHT = [
    ("13.10", "the standard plan", _standard_plan()),
    ("10.9", "in fp32", _cut_loss_in_fp32),
]


@pytest.mark.parametrize(("exercise", "form", "answer"), RIGHT, ids=lambda value: str(value)[:20])
def test_another_right_answer_passes(exercise, form, answer):
    find(exercise).check(answer)
