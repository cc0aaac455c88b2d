"""Moments of one byte: the map, the rounding, the bytes, and why the variance needs care."""

import pytest
import torch

from course_lib.measure.peak import tensor_bytes
from course_lib.scratch.precision import (
    AdamW8bit,
    dequantise,
    dynamic_levels,
    fp8_levels,
    linear_levels,
    quantise,
)


@pytest.mark.parametrize("levels_of", [linear_levels, dynamic_levels])
@pytest.mark.parametrize("signed", [True, False])
def test_levels_are_sorted_and_fit_into_a_byte(levels_of, signed):
    levels = levels_of(signed)
    assert 255 <= len(levels) <= 256
    assert bool((levels.diff() > 0).all())
    assert levels.abs().max() == 1
    assert bool((levels < 0).any()) == signed


def test_the_dynamic_map_is_that_of_the_paper():
    """arXiv:2110.02861: a sign, and 7 decades with half as many levels each; 0 and 1 beside."""
    levels = dynamic_levels(signed=True)
    positive = levels[levels > 0]
    assert torch.equal(levels[levels < 0].flip(0), -positive[:-1])  # 1 has no counterpart
    in_decades = [
        int(((positive > 10.0**-n) & (positive < 10.0 ** (1 - n))).sum()) for n in range(1, 8)
    ]
    assert in_decades == [64, 32, 16, 8, 4, 2, 1]
    assert 0 in levels


def test_a_value_comes_back_as_the_nearest_level():
    values = torch.randn(5, 77, generator=torch.Generator().manual_seed(0))
    levels = dynamic_levels(signed=True)
    codes, scales = quantise(values, levels, block=64)
    assert codes.dtype == torch.uint8
    assert scales.shape == (7,)
    back = dequantise(codes, scales, levels, block=64)
    gap = (values - back).abs().flatten()
    widest = levels.diff().max() / 2
    assert bool((gap <= widest * scales.repeat_interleave(64)[:385] * 1.0001).all())
    assert back.abs().amax() <= values.abs().amax()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_levels_of_fp8_round_as_torch_does(dtype):
    values = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
    levels = fp8_levels(dtype)
    assert {torch.float8_e4m3fn: 253, torch.float8_e5m2: 247}[dtype] == len(levels)
    back = dequantise(*quantise(values, levels, block=100), levels, block=100)
    scale = values.abs().amax(dim=1, keepdim=True) / torch.finfo(dtype).max
    torch.testing.assert_close(back, (values / scale).to(dtype).float() * scale)


@pytest.mark.parametrize("shape", [(), (0,), (300,)])
def test_zeros_come_back_as_zeros(shape):
    for signed in (True, False):
        levels = dynamic_levels(signed)
        back = dequantise(*quantise(torch.zeros(shape), levels), levels)
        assert torch.equal(back, torch.zeros(shape))


def test_a_small_variance_is_zero_on_the_linear_map_only():
    values = torch.tensor([1.0, 1e-4, 1e-9])
    for levels_of, zeros in ((linear_levels, 2), (dynamic_levels, 0)):
        levels = levels_of(signed=False)
        back = dequantise(*quantise(values, levels), levels)
        assert int((back == 0).sum()) == zeros


def test_state_takes_two_bytes_and_the_scales():
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (256, 300, 1)]
    optimizer = AdamW8bit(weights, lr=0.1)
    for weight in weights[:2]:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for weight, blocks in zip(weights, (1, 2, 1), strict=True):
        kept = [v for v in optimizer.state[weight].values() if isinstance(v, torch.Tensor)]
        assert tensor_bytes(kept) == 2 * weight.numel() + 2 * 4 * blocks
    assert float(weights[2].detach()) == 1  # no gradient, no update
    assert bool((weights[0] < 0.91).all())


def test_it_follows_fp32_adamw():
    weight = torch.nn.Parameter(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    reference = torch.nn.Parameter(weight.detach().clone())
    start = weight.detach().clone()
    ours, fp32 = AdamW8bit([weight], lr=1e-2), torch.optim.AdamW([reference], lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        weight.grad = torch.randn(1000, generator=generator) + 0.3
        reference.grad = weight.grad.clone()
        ours.step()
        fp32.step()
    gap = (weight - reference).norm() / (reference - start).norm()
    assert float(gap.detach()) < 0.05
