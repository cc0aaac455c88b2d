"""Rounding: by a published table, and by sums that torch makes."""

import math

import pytest
import torch

from course_lib.theory.compute import rounding
from course_lib.theory.compute.rounding import (
    MORE_FROM,
    ROUNDING_UP_TO,
    sum_bound,
    typical_rounding,
    typical_sum_error,
    unit_roundoff,
    verdict,
)

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", TORCH)
def test_a_unit_roundoff_is_half_of_torchs_epsilon(dtype):
    assert unit_roundoff(dtype) == torch.finfo(TORCH[dtype]).eps / 2


def errors(terms, dtype, signs, sums=256):
    """Errors of sums, term by term in `dtype`: over Σ|x|, and over the sums' usual size."""
    torch.manual_seed(terms)
    x = torch.randn(terms, sums) if signs else torch.rand(terms, sums)
    x = x.to(TORCH[dtype])
    total = torch.zeros(sums, dtype=TORCH[dtype])
    for row in x:
        total = total + row
    exact = x.double()
    off = (total.double() - exact.sum(0)).abs()
    return off / exact.abs().sum(0), off / exact.sum(0).square().mean().sqrt()


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize(("terms", "dtype"), [(16, "bf16"), (64, "bf16"), (64, "fp16")])
def test_no_sum_is_off_by_more_than_the_bound(terms, dtype, signs):
    bound = sum_bound(terms, dtype)
    largest = float(errors(terms, dtype, signs)[0].max())
    assert largest <= bound
    assert largest < bound / 2  # the bound is seldom reached


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("terms", [16, 256, 4096])
@pytest.mark.parametrize("dtype", TORCH)
def test_sums_are_typically_off_by_the_root_of_their_length(terms, dtype, signs):
    if dtype != "fp32" and terms > 256:
        return  # n·u is no longer small: such sums stagnate
    measured = float(errors(terms, dtype, signs)[1].square().mean().sqrt())
    typical = typical_sum_error(terms, dtype, accumulate=dtype)
    assert typical / 6 < measured < typical / 1.5


def test_sums_in_blocks_are_more_accurate():
    torch.manual_seed(0)
    x = torch.rand(64, 65_536)
    exact = x.double().sum(1)
    off = ((x.sum(1).double() - exact) / exact).square().mean().sqrt()
    assert off < typical_sum_error(65_536, "fp32", blocks=256)
    assert off < typical_sum_error(65_536, "fp32") / 10


def test_a_product_in_bf16_is_rounded_once():
    torch.manual_seed(0)
    a, b = torch.randn(64, 4096).bfloat16(), torch.randn(4096, 64).bfloat16()
    exact = a.double() @ b.double()
    off = ((a @ b).double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    typical = typical_sum_error(4096, "bf16")
    assert typical == pytest.approx(unit_roundoff("bf16"), rel=1e-3)
    assert typical / 4 < off < typical


FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", *FP8])
def test_typical_rounding_is_what_torch_rounds(dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(100_000, generator=generator, dtype=torch.float64).mul(3).exp()
    rounded = values.to((TORCH | FP8)[dtype]).double()
    off = (rounded / values - 1).square().mean().sqrt()
    assert float(off) == pytest.approx(typical_rounding(dtype), rel=0.02)


def test_verdicts_at_their_borders():
    words = [verdict(times, 1.0) for times in (ROUNDING_UP_TO, MORE_FROM, 1.01 * MORE_FROM)]
    assert words == ["rounding", "don't know", "more than rounding"]
    assert verdict(0.0, 1.0) == "rounding"


REFUSED = [
    (lambda: sum_bound(256, "bf16"), "from 1 on there is no bound"),
    (lambda: unit_roundoff("fp12"), "dtype"),
    (lambda: typical_sum_error(4, "fp32", blocks=5), "blocks"),
    (lambda: verdict(1.0, 0.0), "typical"),
    (lambda: verdict(math.nan, 1.0), "measured"),
]
assert rounding.VERDICTS == ("rounding", "don't know", "more than rounding")
