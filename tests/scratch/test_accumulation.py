"""Accumulation equals one large batch; the mean of means does not; noise is read in passing."""

import pytest
import torch
from torch.optim import SGD, Adam

from course_lib.measure.gradients import flat_gradient, relative_difference
from course_lib.scratch.accumulation import (
    IGNORE,
    accumulate,
    accumulate_and_read,
    accumulate_by_means,
    final_losses,
)
from course_lib.scratch.gpt import GPT, train_epoch
from course_lib.theory.step.batching import Batching


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
    return flat_gradient(model), loss


def pieces(inputs, labels, size):
    return list(zip(inputs.split(size), labels.split(size), strict=True))


@pytest.mark.parametrize(
    ("size", "short", "means_are_right"), [(2, 0, True), (3, 0, False), (2, 5, False)]
)
def test_accumulation_is_torchs_mean_over_the_whole_batch(model, size, short, means_are_right):
    inputs, labels = batch(8, short)
    logits = model(inputs).flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORE).backward()
    whole = flat_gradient(model)
    parts, loss = gradient(model, accumulate, pieces(inputs, labels, size))
    assert relative_difference(parts, whole) < 1e-6
    assert float(loss) == pytest.approx(float(accumulate(model, [(inputs, labels)])), rel=1e-6)
    means, _ = gradient(model, accumulate_by_means, pieces(inputs, labels, size))
    assert (relative_difference(means, whole) < 1e-3) == means_are_right


def test_a_reading_is_accumulation_with_the_squares_of_both_gradients(model):
    window = pieces(*batch(12), 3)
    expected, loss = gradient(model, accumulate, window)
    own = [gradient(model, accumulate, [piece])[0].square().sum() for piece in window]
    found, reading = gradient(model, accumulate_and_read, window)
    assert relative_difference(found, expected) < 1e-6
    assert reading.loss == pytest.approx(float(loss), rel=1e-6)
    assert reading.square_window == pytest.approx(float(expected.square().sum()), rel=1e-5)
    assert reading.square_piece == pytest.approx(float(sum(own)) / len(own), rel=1e-5)
    window[1][1][0, 0] = IGNORE
    with pytest.raises(ValueError, match=r"have \[23, 24\] tokens: give them equally many"):
        accumulate_and_read(model, window)


def test_a_sweep_trains_each_table_as_if_it_were_alone():
    text, size = torch.randint(0, 5, (60,), generator=torch.Generator().manual_seed(3)), 30
    for optimizer in (SGD, Adam):
        together = final_losses(optimizer, (0.1, 0.4), 4, text, vocab=5, seen=64)
        for rate, loss in together.items():
            assert final_losses(optimizer, (rate,), 4, text, vocab=5, seen=64)[rate] == loss
    # One update by hand: from zero, the gradient is (counts of the rows / 5 - counts).
    at = torch.randint(len(text) - 1, (size,), generator=torch.Generator().manual_seed(0))
    pairs = (text[at], text[at + 1])
    counts = torch.zeros(5, 5).index_put(pairs, torch.ones(size), accumulate=True)
    table = -2.0 * (counts.sum(1, keepdim=True) / 5 - counts) / size
    expected = -torch.log_softmax(table, dim=1)[text[:-1], text[1:]].mean()
    found = final_losses(SGD, (2.0,), size, text, vocab=5, seen=size)
    assert found[2.0] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("sizes", [(1003, 5, 2), (7, 3, 1), (2, 8, 4)])
def test_the_loops_counts_are_the_theorys_and_a_window_moves_the_weights_as_one_batch(sizes):
    samples, micro_batch, accumulation = sizes
    data = torch.randn(samples, 3), torch.randn(samples, 1)
    pieces, whole = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    whole.load_state_dict(pieces.state_dict())
    counts = train_epoch(pieces, SGD(pieces.parameters(), 0.01), *data, micro_batch, accumulation)
    epoch = Batching(*sizes).epoch()
    found = (counts.micro_steps, counts.updates, counts.samples)
    assert found == (epoch.micro_steps, epoch.updates, samples)
    train_epoch(whole, SGD(whole.parameters(), 0.01), *data, micro_batch * accumulation)
    torch.testing.assert_close(pieces.weight, whole.weight)
