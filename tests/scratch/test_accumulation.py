"""Accumulation equals one large batch; the mean of means does not."""

import pytest
import torch

from course_lib.measure.gradients import flat_gradient, relative_difference
from course_lib.scratch.accumulation import (
    IGNORE,
    accumulate,
    accumulate_by_means,
    count_tokens,
    loss_sum,
)
from course_lib.scratch.gpt import GPT


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(layers=1, hidden=16, heads=2, vocab=32, context=8)


def batch(samples, short=0):
    """Random inputs and labels; the first `short` samples have two tokens that count."""
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randint(0, 32, (2, samples, 8), generator=generator)
    labels[:short, 2:] = IGNORE
    return inputs, labels


def gradient(model, method, window):
    model.zero_grad()
    loss = method(model, window)
    return flat_gradient(model), float(loss)


def pieces(inputs, labels, size):
    return list(zip(inputs.split(size), labels.split(size), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("short", [0, 5])
def test_accumulated_gradient_is_that_of_the_whole_batch(model, size, short):
    inputs, labels = batch(8, short)
    whole, whole_loss = gradient(model, accumulate, [(inputs, labels)])
    parts, parts_loss = gradient(model, accumulate, pieces(inputs, labels, size))
    assert relative_difference(parts, whole) < 1e-6
    assert parts_loss == pytest.approx(whole_loss, rel=1e-6)


def test_whole_batch_gradient_is_that_of_torch_s_mean(model):
    inputs, labels = batch(4)
    ours, _ = gradient(model, accumulate, [(inputs, labels)])
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten()).backward()
    assert relative_difference(ours, flat_gradient(model)) < 1e-6


def test_mean_of_means_is_right_for_equal_token_counts(model):
    inputs, labels = batch(8)
    whole, _ = gradient(model, accumulate, [(inputs, labels)])
    means, _ = gradient(model, accumulate_by_means, pieces(inputs, labels, 2))
    assert relative_difference(means, whole) < 1e-6


def test_mean_of_means_is_wrong_for_ragged_sequences(model):
    inputs, labels = batch(8, short=4)
    whole, _ = gradient(model, accumulate, [(inputs, labels)])
    means, _ = gradient(model, accumulate_by_means, pieces(inputs, labels, 2))
    assert relative_difference(means, whole) > 0.05


def test_padding_does_not_count():
    inputs, labels = batch(4, short=1)
    assert int(count_tokens([(inputs, labels)])) == 3 * 8 + 2
    logits = torch.zeros(4, 8, 32)
    assert float(loss_sum(logits, labels)) == pytest.approx(26 * torch.tensor(32.0).log())
