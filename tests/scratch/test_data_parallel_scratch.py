"""One process, several devices: the same outputs and gradients as the model itself."""

import pytest
import torch
from torch import nn

from course_lib.chapters.ch07_ddp.copies import copied_bytes
from course_lib.measure.gradients import flat_gradient
from course_lib.measure.peak import tensor_bytes
from course_lib.scratch.data_parallel import DataParallel, scatter, shell
from course_lib.scratch.ddp import Spread
from course_lib.scratch.gpt import GPT

TOKENS = torch.arange(42).view(7, 6) % 11


def model():
    torch.manual_seed(0)
    return GPT(layers=3, hidden=16, heads=2, vocab=11, context=6)


def outcome(wrapped, gpt):
    output = wrapped(TOKENS)
    output.square().sum().backward()
    return output.detach(), flat_gradient(gpt)


@pytest.mark.parametrize("devices", [1, 2, 3, 9])
def test_outputs_and_gradients_are_those_of_the_model(devices):
    gpt, other = model(), model()
    output, gradient = outcome(gpt, gpt)
    ours, sums = outcome(DataParallel(other, ["cpu"] * devices), other)
    torch.testing.assert_close(ours, output)
    torch.testing.assert_close(sums, gradient)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_weights_are_copied_to_all_devices_but_the_first(devices):
    gpt = model()
    parallel = DataParallel(gpt, ["cpu"] * devices)
    size = tensor_bytes(gpt.parameters())
    assert copied_bytes(parallel.replicate) == (devices - 1) * size
    assert copied_bytes(lambda: parallel(TOKENS)) >= (devices - 1) * size


def test_a_shell_has_no_weights_and_keeps_what_is_shared():
    empty = shell(model())
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert empty.head.weight is empty.embedding.weight


def test_a_step_of_the_optimizer_reaches_every_copy():
    gpt = model()
    parallel = DataParallel(gpt, ["cpu", "cpu"])
    with torch.no_grad():
        gpt.norm.weight.zero_()
        gpt.norm.bias.fill_(1.0)
    assert torch.equal(parallel(TOKENS), gpt(TOKENS))


def test_evaluation_needs_no_graph():
    parallel = DataParallel(model(), ["cpu", "cpu"])
    with torch.no_grad():
        assert not parallel(TOKENS).requires_grad


def test_an_error_in_a_thread_reaches_the_caller():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        DataParallel(nn.Linear(3, 3), ["cpu", "cpu"])(torch.ones(2, 4))


def test_scatter_leaves_devices_without_rows_out():
    cpu = torch.device("cpu")
    assert [len(piece) for piece in scatter(TOKENS, [cpu] * 3)] == [3, 3, 1]
    assert [len(piece) for piece in scatter(TOKENS[:2], [cpu] * 3)] == [1, 1]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_spread_model_is_the_same(devices):
    gpt, other = model(), model()
    spread = Spread(other, ["cpu"] * devices)
    for ours, one in zip(outcome(spread, other), outcome(gpt, gpt), strict=True):
        assert torch.equal(ours, one)
    assert spread.model.head.weight is spread.model.embedding.weight


def test_layers_are_shared_out_in_runs():
    spread = Spread(model(), [torch.device("cpu"), torch.device("cpu", 0)])
    assert [place.index for place in spread.places] == [None, None, 0]


def test_more_devices_than_layers_are_refused():
    with pytest.raises(ValueError, match="devices are 4, more than the model's 3 layers"):
        Spread(model(), ["cpu"] * 4)
