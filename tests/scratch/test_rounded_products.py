"""Products of rounded operands: against torch's own fp8 product, and against a plain layer."""

import pytest
import torch
from torch import nn

from course_lib.scratch.precision import (
    Formats,
    RoundedLinear,
    RoundedProduct,
    round_products,
    round_to,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PLAIN = Formats(torch.float32, torch.float32, scaled=False)


def _random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _in_fp8(values, dtype):
    scale = values.abs().max() / torch.finfo(dtype).max
    return (values / scale).to(dtype), scale


def _torchs(a, b):
    """a · b by torch, of fp8 numbers and their scales; `b` lies in columns."""
    (left, of_left), (right, of_right) = a, b
    return torch._scaled_mm(left, right, scale_a=of_left, scale_b=of_right, out_dtype=torch.float32)


def test_all_three_products_are_those_of_torchs_fp8():
    x, weight, gradient = _random(32, 64), _random(48, 64, seed=1), 1e-6 * _random(32, 48, seed=2)
    x.requires_grad_()
    weight.requires_grad_()
    out = RoundedProduct.apply(x, weight, Formats())
    out.backward(gradient)
    (xs, of_x), (ws, of_w) = _in_fp8(x.detach(), E4M3), _in_fp8(weight.detach(), E4M3)
    gs, of_g = _in_fp8(gradient, E5M2)
    by_columns = xs.t().contiguous().t(), of_x
    torch.testing.assert_close(out.detach(), _torchs((xs, of_x), (ws.t(), of_w)))
    columns = ws.t().contiguous().t(), of_w
    torch.testing.assert_close(x.grad, _torchs((gs, of_g), columns), rtol=1e-4, atol=1e-9)
    rows = gs.t().contiguous(), of_g
    torch.testing.assert_close(weight.grad, _torchs(rows, by_columns), rtol=1e-4, atol=1e-9)


def test_fp32_formats_are_a_plain_layer():
    layer, x = nn.Linear(6, 5), _random(2, 3, 6)
    x.requires_grad_()
    layer(x).square().sum().backward()
    wanted = [x.grad, layer.weight.grad, layer.bias.grad]
    x.grad = layer.weight.grad = layer.bias.grad = None
    RoundedLinear(layer, PLAIN)(x).square().sum().backward()
    for found, plain in zip([x.grad, layer.weight.grad, layer.bias.grad], wanted, strict=True):
        torch.testing.assert_close(found, plain)


def test_without_a_scale_small_numbers_are_zero_and_large_ones_the_largest():
    values = torch.tensor([1e-6, 1.0, 1e6])
    assert round_to(values, E5M2, scaled=False).tolist() == [0, 1, 57344]
    assert round_to(values, E4M3, scaled=False).tolist() == [0, 1, 448]
    small = torch.tensor([1e-6, 0.5e-6])
    torch.testing.assert_close(round_to(small, E5M2), small)
    assert round_to(small, E5M2, scaled=False).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_zeros_come_back_as_zeros(dtype):
    assert torch.equal(round_to(torch.zeros(3), dtype), torch.zeros(3))


def test_every_linear_layer_is_replaced_and_keeps_its_weights():
    inside = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(inside, nn.LayerNorm(4)))
    before = list(model.parameters())
    round_products(model, Formats())
    assert sum(isinstance(layer, RoundedLinear) for layer in model.modules()) == 2
    assert not any(isinstance(layer, nn.Linear) for layer in model.modules())
    assert {id(p) for p in model.parameters()} == {id(p) for p in before}
    model(_random(2, 4)).sum().backward()
    assert inside.weight.grad is not None
