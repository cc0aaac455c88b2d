"""Few bits: the ledger's bytes, master copies, loss scales, moments of one byte, fp8 products."""

import itertools

import pytest
import torch
from torch import nn

from course_lib.chapters.ch03_what_is_in_the_memory.exercises import loss_scale
from course_lib.scratch.accumulation import loss_sum
from course_lib.scratch.gpt import GPT, ledger
from course_lib.scratch.precision import (
    AdamW8bit,
    Formats,
    LossScaler,
    MasterAdamW,
    RoundedLinear,
    RoundedProduct,
    adamw_update,
    dequantise,
    dynamic_levels,
    fp8_levels,
    linear_levels,
    quantise,
    round_products,
    round_to,
)
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.memory.peak import training_memory

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- bytes and updates -----------------------------------------------------------------------------

SHAPE = TransformerShape(layers=2, hidden=32, heads=4, ffn=128, vocab=64, context=16)
FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)


@pytest.mark.parametrize(
    ("dtype", "make", "recipe"),
    [
        (torch.float32, lambda p: torch.optim.SGD(p, 0.1), {"optimizer": "sgd"}),
        (torch.float32, lambda p: torch.optim.SGD(p, 0.1, 0.9), {"optimizer": "momentum"}),
        (torch.float32, torch.optim.AdamW, {"optimizer": "adamw"}),
        (torch.bfloat16, lambda p: MasterAdamW(p, lr=1e-3), None),
    ],
)
def test_every_byte_of_the_ledger_is_the_formulas(dtype, make, recipe):
    model = GPT(SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.vocab, SHAPE.context).to(dtype)
    inputs, labels = torch.randint(0, 64, (3, 16)), torch.randint(0, 64, (3, 16))
    optimizer = make(model.parameters())
    loss_sum(model(inputs).float(), labels).backward()
    optimizer.step()
    found = ledger(model, optimizer, [inputs, labels])
    trained_in = Recipe(**{**vars(FP32), **recipe}) if recipe else Recipe()
    predicted = training_memory(SHAPE, trained_in, 3).consumers
    assert found == {name: predicted[name] for name in found}


def test_the_arithmetic_of_an_update_is_torchs():
    rates = {"lr": 0.1, "betas": (0.7, 0.95), "eps": 0.1, "weight_decay": 0.4}
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    ours, zero = weight.detach().clone(), torch.zeros(3)
    moments, adamw = (zero.clone(), zero.clone()), torch.optim.AdamW([weight], **rates)
    for step in range(1, 6):
        weight.grad = torch.tensor([0.5, -1.0, 0.0]) * step
        adamw_update(ours, weight.grad, *moments, step=step, **rates)
        adamw.step()
        torch.testing.assert_close(ours, weight.detach())


def test_a_master_copy_follows_fp32_where_bf16_alone_stands_still():
    ours, plain = (nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2))
    reference = nn.Parameter(torch.ones(4))
    optimizers = [MasterAdamW([ours], lr=1e-3)]
    optimizers += [torch.optim.AdamW([one], lr=1e-3) for one in (plain, reference)]
    for _ in range(20):
        for weight, optimizer in zip((ours, plain, reference), optimizers, strict=True):
            weight.grad = torch.full_like(weight, 0.5)
            optimizer.step()
    assert torch.equal(plain, torch.ones_like(plain))  # each update of 0.001 was rounded away
    assert torch.equal(ours, reference.bfloat16()) and bool((ours < 1).all())


# -- loss scaling ----------------------------------------------------------------------------------

# The gradient times these overflows at once, after growth, and never again.
FACTORS = [1.0, 1e36, 1.0, 2.0, -1.0, 1e37, 0.5, 1.0, 3.0, 1.0]


def scaled_training(scaled, step):
    """Weights after each of ten updates of SGD with momentum."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    ways = []
    for factor in FACTORS:
        optimizer.zero_grad()
        scaled(layer(torch.ones(4, 3)).square().mean() * factor).backward()
        step(optimizer)
        ways.append(torch.cat([p.detach().flatten() for p in layer.parameters()]))
    return torch.stack(ways)


def test_a_loss_is_scaled_as_by_torch():
    ours, scales, made = LossScaler(growth_interval=2), [], []
    theirs = torch.amp.GradScaler("cpu", growth_interval=2)

    def step_theirs(optimizer):
        theirs.step(optimizer)
        theirs.update()
        scales.append(theirs.get_scale())

    def step_ours(optimizer):
        made.append(ours.step(optimizer))
        assert ours.scale == scales[len(made) - 1]

    reference = scaled_training(theirs.scale, step_theirs)
    assert torch.equal(scaled_training(ours.scaled, step_ours), reference)
    assert made == [factor < 1e30 for factor in FACTORS]


def test_a_small_gradient_survives_fp16_and_one_that_is_missing_does_no_harm():
    for scale, arrived in ((1.0, False), (2.0**16, True)):
        weights = [nn.Parameter(torch.zeros(1, dtype=torch.float16)) for _ in range(2)]
        scaler = LossScaler(scale)
        scaler.scaled((weights[0].float() * 1e-8).sum()).backward()
        assert bool(weights[0].grad) == arrived
        assert scaler.step(torch.optim.SGD(weights, lr=0.5))


def test_the_exercise_counts_as_torch_does():
    overflows = [True, False, False, True, *[False] * 4100, True, False]
    theirs = torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for overflow in overflows:
        theirs.scale(torch.zeros(()))  # the scale is made at the first call
        weight.grad = torch.full((1,), float("inf") if overflow else theirs.get_scale())
        theirs.step(optimizer)
        theirs.update()
    assert loss_scale(overflows) == (theirs.get_scale(), -weight.item())


# -- moments of one byte ---------------------------------------------------------------------------


def test_the_dynamic_map_is_that_of_the_paper_and_both_maps_fit_into_a_byte():
    """arXiv:2110.02861: a sign, and 7 decades with half as many levels each; 0 and 1 as well."""
    for levels_of, signed in itertools.product((linear_levels, dynamic_levels), (True, False)):
        levels = levels_of(signed)
        assert 255 <= len(levels) <= 256 and bool((levels.diff() > 0).all())
        assert levels.abs().max() == 1 and bool((levels < 0).any()) == signed
    levels = dynamic_levels(signed=True)
    positive = levels[levels > 0]
    assert torch.equal(levels[levels < 0].flip(0), -positive[:-1])  # 1 has no counterpart
    pairs = itertools.pairwise(10.0**-n for n in range(8))
    decades = [int(((positive > a) & (positive < b)).sum()) for b, a in pairs]
    assert decades == [64, 32, 16, 8, 4, 2, 1] and 0 in levels


def test_a_value_comes_back_as_the_nearest_level():
    values, levels = drawn(5, 77), dynamic_levels(signed=True)
    codes, scales = quantise(values, levels, block=64)
    assert codes.dtype == torch.uint8 and scales.shape == (7,)
    back = dequantise(codes, scales, levels, block=64)
    widest = levels.diff().max() / 2 * scales.repeat_interleave(64)[:385] * 1.0001
    assert bool(((values - back).abs().flatten() <= widest).all())


@pytest.mark.parametrize(("dtype", "count"), [(E4M3, 253), (E5M2, 247)])
def test_the_levels_of_fp8_round_as_torch_does(dtype, count):
    values, levels = drawn(6, 100), fp8_levels(dtype)
    assert len(levels) == count
    back = dequantise(*quantise(values, levels, block=100), levels, block=100)
    scale = values.abs().amax(dim=1, keepdim=True) / torch.finfo(dtype).max
    torch.testing.assert_close(back, (values / scale).to(dtype).float() * scale)


def test_zeros_come_back_as_zeros():
    for zeros in map(torch.zeros, ((), (0,), (300,))):
        levels = dynamic_levels(signed=False)
        assert torch.equal(dequantise(*quantise(zeros, levels), levels), zeros)
    assert torch.equal(round_to(zeros, E4M3), zeros)


def test_eight_bits_follow_fp32_and_leave_alone_what_has_no_gradient():
    start = drawn(1000)
    weight, reference, other = nn.Parameter(start.clone()), nn.Parameter(start.clone()), start[:1]
    other = nn.Parameter(other.clone())
    ours, fp32 = AdamW8bit([weight, other], lr=1e-2), torch.optim.AdamW([reference], lr=1e-2)
    for seed in range(20):
        weight.grad = drawn(1000, seed=seed) + 0.3
        reference.grad = weight.grad.clone()
        ours.step()
        fp32.step()
    gap = (weight - reference).norm() / (reference - start).norm()
    assert float(gap.detach()) < 0.05
    assert torch.equal(other, start[:1])


# -- rounded products ------------------------------------------------------------------------------


def in_fp8(values, dtype):
    scale = values.abs().max() / torch.finfo(dtype).max
    return (values / scale).to(dtype), scale


def torchs(a, b):
    """a · b by torch, of fp8 numbers and their scales; `b` lies in columns."""
    (left, of_left), (right, of_right) = a, b
    return torch._scaled_mm(left, right, scale_a=of_left, scale_b=of_right, out_dtype=torch.float32)


def test_all_three_products_are_those_of_torchs_fp8():
    x, weight, gradient = drawn(32, 64), drawn(48, 64, seed=1), 1e-6 * drawn(32, 48, seed=2)
    x.requires_grad_()
    weight.requires_grad_()
    out = RoundedProduct.apply(x, weight, Formats())
    out.backward(gradient)
    (xs, of_x), (ws, of_w) = in_fp8(x.detach(), E4M3), in_fp8(weight.detach(), E4M3)
    gs, of_g = in_fp8(gradient, E5M2)
    torch.testing.assert_close(out.detach(), torchs((xs, of_x), (ws.t(), of_w)))
    columns = ws.t().contiguous().t(), of_w
    torch.testing.assert_close(x.grad, torchs((gs, of_g), columns), rtol=1e-4, atol=1e-9)
    rows, by_columns = (gs.t().contiguous(), of_g), (xs.t().contiguous().t(), of_x)
    torch.testing.assert_close(weight.grad, torchs(rows, by_columns), rtol=1e-4, atol=1e-9)


def test_without_a_scale_small_numbers_are_zero_and_large_ones_the_largest():
    values, small = torch.tensor([1e-6, 1.0, 1e6]), torch.tensor([1e-6, 0.5e-6])
    assert round_to(values, E5M2, scaled=False).tolist() == [0, 1, 57344]
    assert round_to(values, E4M3, scaled=False).tolist() == [0, 1, 448]
    torch.testing.assert_close(round_to(small, E5M2), small)


def test_every_linear_layer_is_replaced_and_in_fp32_computes_the_same():
    inside = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(inside, nn.LayerNorm(4)))
    before = list(model.parameters())

    def outcome():
        model.zero_grad()
        out = model(drawn(2, 3, 4))
        out.square().sum().backward()
        return out.detach(), [p.grad for p in before]

    expected = outcome()
    round_products(model, Formats(torch.float32, torch.float32, scaled=False))
    assert sum(isinstance(layer, RoundedLinear) for layer in model.modules()) == 2
    assert not any(isinstance(layer, nn.Linear) for layer in model.modules())
    torch.testing.assert_close(outcome(), expected)
