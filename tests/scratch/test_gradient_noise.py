"""The noise of a run, read in passing: the same gradient, and the same noise scale."""

import pytest
import torch

from course_lib.measure.gradients import flat_gradient, relative_difference
from course_lib.scratch.accumulation import IGNORE, accumulate, accumulate_and_read
from course_lib.scratch.gpt import GPT
from course_lib.theory.step.batching import noise_scale


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(layers=1, hidden=16, heads=2, vocab=32, context=8)


@pytest.fixture
def window():
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randint(0, 32, (2, 12, 8), generator=generator)
    return list(zip(inputs.split(3), labels.split(3), strict=True))


def test_gradient_and_loss_are_those_of_accumulate(model, window):
    loss = accumulate(model, window)
    expected = flat_gradient(model)
    model.zero_grad()
    reading = accumulate_and_read(model, window)
    assert relative_difference(flat_gradient(model), expected) < 1e-6
    assert reading.loss == pytest.approx(float(loss), rel=1e-6)
    assert reading.square_window == pytest.approx(float(expected.square().sum()), rel=1e-5)


def test_square_of_a_piece_is_the_mean_over_its_own_gradients(model, window):
    squares = []
    for piece in window:
        model.zero_grad()
        accumulate(model, [piece])
        squares.append(float(flat_gradient(model).square().sum()))
    model.zero_grad()
    reading = accumulate_and_read(model, window)
    assert reading.square_piece == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_noise_scale_of_a_model_with_known_noise():
    """Loss of a table of two rows: gradients are 0.5 long, and two kinds of labels disagree."""
    table = torch.nn.Embedding(2, 2)
    torch.nn.init.zeros_(table.weight)
    generator = torch.Generator().manual_seed(0)
    readings = []
    for _ in range(400):
        labels = (torch.rand(8, 1, generator=generator) < 0.25).long()
        inputs = torch.zeros_like(labels)
        table.zero_grad()
        window = list(zip(inputs.split(1), labels.split(1), strict=True))
        readings.append(accumulate_and_read(table, window))
    piece, whole = (
        sum(getattr(reading, name) for reading in readings) / len(readings)
        for name in ("square_piece", "square_window")
    )
    # One sample's gradient is ±(0.5, -0.5): |g|² = 0.5. The mean is half as long, a quarter of it.
    assert noise_scale(1, piece, 8, whole) == pytest.approx((0.5 - 0.125) / 0.125, rel=0.15)


def test_uneven_micro_batches_are_refused(model, window):
    inputs, labels = window[0]
    short = labels.clone()
    short[0, 0] = IGNORE
    with pytest.raises(ValueError, match=r"have \[23, 24\] tokens: give them equally many"):
        accumulate_and_read(model, [(inputs, labels), (inputs, short)])
