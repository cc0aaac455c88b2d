"""Right answers in another form than the solution's pass; a refusal names what is wrong."""

from itertools import pairwise

import pytest
import torch

from course_lib.checking import Wrong
from course_lib.checking.exercises import find
from course_lib.theory import planner
from course_lib.theory.inputs import Cluster, Job, Layout, Recipe
from course_lib.theory.inputs.hardware import accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.step import step_time
from course_lib.theory.step.assumptions import Assumptions

_NO_ACCUMULATION = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.0,
    "zero_optimization": {"stage": 2},
}


def test_a_wrong_entry_is_named():
    kept = {"A": "DDP", "B": "ZeRO 1", "C": "ZeRO 2", "D": "DDP", "E": "ZeRO 3", "F": "ZeRO 1"}
    with pytest.raises(Wrong, match="for 'B' it gave 'ZeRO 1'") as refused:
        find("8.10").check([kept, 36e6])
    assert "DDP's all-reduce stays" in refused.value.because


def test_an_index_beyond_the_only_width_is_no_error_of_the_check():
    def stack_flop(widths, tokens):
        weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
        return 2 * tokens * (3 * weights - widths[0] * widths[1])

    with pytest.raises(Wrong, match=r"raised IndexError: .*, expected ValueError"):
        find("5.4").check(stack_flop)


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
    ("13.10", "the standard plan", _standard_plan),
    ("10.9", "in fp32", _cut_loss_in_fp32),
    ("8.9", "DeepSpeed computes the accumulation", _NO_ACCUMULATION),
    ("8.9", "it is written", _NO_ACCUMULATION | {"gradient_accumulation_steps": 4}),
    ("9.3", "rounded", (3.188e9, 49.81e6, 398.49e6)),
]


@pytest.mark.parametrize(("exercise", "form", "answer"), RIGHT, ids=lambda value: str(value)[:20])
def test_another_right_answer_passes(exercise, form, answer):
    find(exercise).check(answer() if answer is _standard_plan else answer)
