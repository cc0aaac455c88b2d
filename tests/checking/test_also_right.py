"""Answers that are right in another form, or as far as the theory can tell, are taken."""

import pytest
import torch

from course_lib.checking.exercises import find


def _cut_loss_in_fp32(parts, label):
    """The loss as a learner writes it in torch: every number in fp32."""
    tensors = [torch.tensor(part) for part in parts]
    top = torch.stack([part.max() for part in tensors]).max()
    total = sum(torch.exp(part - top).sum() for part in tensors)
    return (top + torch.log(total) - torch.cat(tensors)[label]).item()


RIGHT = [
    ("10.9", "in fp32", _cut_loss_in_fp32),
]


@pytest.mark.parametrize(("exercise", "form", "answer"), RIGHT, ids=lambda value: str(value)[:20])
def test_another_right_answer_passes(exercise, form, answer):
    find(exercise).check(answer)
