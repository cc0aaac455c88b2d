"""Comparing gradients."""

import pytest
import torch

from course_lib.measure.gradients import flat_gradient, mean_square_norm, relative_difference


def test_flat_gradient_has_every_parameter():
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    assert flat_gradient(layer).tolist() == [1.0] * 8


def test_relative_difference():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    assert relative_difference(a, a) == 0
    assert relative_difference(b, a) == pytest.approx(0.1)


def test_mean_square_norm():
    assert mean_square_norm([torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])]) == 13.0
