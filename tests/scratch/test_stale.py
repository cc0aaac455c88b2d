"""Late gradients: by a line with a known answer."""

import pytest
import torch

from course_lib.scratch.parameter_server import descend


def test_without_delay_it_is_gradient_descent():
    weights = descend(torch.tensor(1.0), lambda w: 2 * w, lr=0.25, late=0, updates=3)
    assert [float(w) for w in weights] == [1, 0.5, 0.25, 0.125]


def test_each_gradient_is_of_older_weights():
    weights = descend(torch.tensor(1.0), lambda w: w, lr=0.5, late=2, updates=5)
    assert [float(w) for w in weights] == pytest.approx([1, 0.5, 0, -0.5, -0.75, -0.75])
