"""The loop's counts are those of Batching.epoch()."""

import pytest
import torch

from course_lib.scratch.gpt import train_epoch
from course_lib.theory.step.batching import Batching


@pytest.mark.parametrize(
    ("samples", "micro_batch", "accumulation"), [(1000, 5, 2), (1003, 5, 2), (7, 3, 1), (2, 8, 4)]
)
def test_counts(samples, micro_batch, accumulation):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(samples, 3), torch.randn(samples, 1)
    counts = train_epoch(model, optimizer, *data, micro_batch, accumulation)
    epoch = Batching(samples, micro_batch, accumulation).epoch()
    assert (counts.micro_steps, counts.updates) == (epoch.micro_steps, epoch.updates)
    assert counts.samples == samples


def test_one_window_moves_the_weights_as_one_batch():
    torch.manual_seed(0)
    inputs, targets = torch.randn(10, 3), torch.randn(10, 1)
    pieces, whole = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    whole.load_state_dict(pieces.state_dict())
    for model, micro_batch, accumulation in ((pieces, 3, 4), (whole, 10, 1)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train_epoch(model, optimizer, inputs, targets, micro_batch, accumulation)
    assert torch.allclose(pieces.weight, whole.weight, atol=1e-6)
