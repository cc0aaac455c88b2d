"""Comparing gradients."""

import pytest
import torch

from course_lib.measure.gradients import (
    flat_gradient,
    flowing_gradients,
    mean_square_norm,
    relative_difference,
)


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


def test_flowing_gradients_are_those_of_the_outputs():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    x = torch.rand(5, 3, requires_grad=True)
    flowing = flowing_gradients(model, lambda: model(x).sum())
    assert flowing.shape == (5 * 1 + 5 * 2,)
    assert flowing[:5].tolist() == [1.0] * 5  # the last layer comes first
    passed = (model[0](x) > 0) * model[2].weight
    torch.testing.assert_close(flowing[5:], passed.flatten())
    assert not any(layer._backward_hooks for layer in model)


def test_flowing_gradients_keep_their_precision():
    model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    x = torch.ones(1, 4, dtype=torch.bfloat16, requires_grad=True)
    assert flowing_gradients(model, lambda: model(x).sum()).dtype == torch.bfloat16
