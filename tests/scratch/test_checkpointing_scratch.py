"""Checkpointing by hand: the same gradients, masks included, and only inputs kept."""

import threading
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from course_lib.chapters.ch14_parameter_servers.exchanges import Swapping
from course_lib.measure.gradients import flat_gradient, relative_difference, saved_bytes
from course_lib.measure.times import matmul_flops
from course_lib.scratch import checkpointing
from course_lib.scratch.checkpointing import Segment, cut
from course_lib.scratch.gpt import GPT

TOKENS = torch.arange(12).view(2, 6) % 7


def model(dropout=0.0):
    torch.manual_seed(0)
    gpt = GPT(layers=5, hidden=16, heads=2, vocab=7, context=6)
    gpt.blocks = nn.ModuleList(nn.Sequential(b, nn.Dropout(dropout)) for b in gpt.blocks)
    return gpt


def gradient(gpt, seed=1):
    torch.manual_seed(seed)
    gpt(TOKENS).square().sum().backward()
    return flat_gradient(gpt)


@pytest.mark.parametrize(("size", "dropout"), [(1, 0.3), (2, 0.3), (5, 0.0)])
def test_gradients_are_the_same_to_the_bit(size, dropout):
    assert torch.equal(gradient(cut(model(dropout), size)), gradient(model(dropout)))


def test_without_the_random_state_dropout_would_be_wrong(monkeypatch):
    monkeypatch.setattr(checkpointing, "same_random_numbers", lambda *_: nullcontext())
    gap = relative_difference(gradient(cut(model(0.3), 1)), gradient(model(0.3)))
    assert gap > 0.1


def test_recomputation_leaves_the_random_state_alone():
    after = []
    for make in (lambda: model(0.3), lambda: cut(model(0.3), 2)):
        gradient(make())
        after.append(torch.rand(1))
    assert torch.equal(*after)


@pytest.mark.parametrize(("size", "segments"), [(1, 5), (2, 3), (5, 1)])
def test_a_segment_keeps_its_input(size, segments):
    gpt = cut(model(), size)
    assert [len(segment.layers) for segment in gpt.blocks] == [
        min(size, 5 - size * n) for n in range(segments)
    ]
    x = torch.randn(2, 6, 16, requires_grad=True)

    def blocks():
        y = x
        for block in gpt.blocks:
            y = block(y)
        return y.sum()

    assert saved_bytes(blocks, gpt) == segments * x.nbytes
    plain = matmul_flops(lambda: model()(TOKENS).sum().backward())
    assert matmul_flops(lambda: gpt(TOKENS).sum().backward()) > plain


def test_frozen_layers_pass_gradients_on():
    frozen = Segment(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3))
    x = torch.ones(1, 3, requires_grad=True)
    frozen(x).sum().backward()
    assert x.grad is not None
    assert [p.grad is None for p in frozen.parameters()] == [True, True, False, False]


# -- layers from the host's memory -----------------------------------------------------------------

LAYERS, SIDE = 6, 32


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SIDE, SIDE, generator=generator) / SIDE**0.5 for _ in range(LAYERS)]


@pytest.mark.parametrize(("compute_s", "swap_s"), [(0.003, 0.001), (0.001, 0.003)])
def test_both_orders_compute_the_same_and_no_faster_than_the_theory(weights, compute_s, swap_s):
    host = checkpointing.SlowHost(weights, 4 * SIDE * SIDE / swap_s)
    x, layer = torch.ones(2, SIDE), checkpointing.slow_layer(compute_s)
    theory = Swapping([compute_s] * LAYERS, [swap_s] * LAYERS)
    expected = x
    for weight in weights:
        expected = torch.relu(expected @ weight)
    for order, least_s in (
        (checkpointing.one_by_one, theory.serial_s),
        (checkpointing.meanwhile, theory.overlapped_s),
    ):
        start = time.perf_counter()
        assert torch.equal(order(host.fetch, LAYERS, layer, x), expected)
        assert time.perf_counter() - start >= least_s


def test_while_a_layer_computes_the_next_one_comes_and_no_other(weights):
    computed, asked = [], [threading.Event() for _ in range(LAYERS + 1)]
    asked[LAYERS].set()  # there is none behind the last layer

    def fetch(number):
        assert number <= len(computed) + 1  # the one at work, and the next
        asked[number].set()
        return weights[number]

    def layer(x, weight):
        assert asked[len(computed) + 1].wait(60)
        computed.append(weight)
        return x @ weight

    checkpointing.meanwhile(fetch, LAYERS, layer, torch.ones(1, SIDE))
    assert len(computed) == LAYERS
