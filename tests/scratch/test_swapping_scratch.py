"""Layers from the host's memory: the same result, sooner, and as late as the theory says."""

import time

import pytest
import torch

from course_lib.chapters.ch14_parameter_servers.exchanges import Swapping
from course_lib.scratch import checkpointing

LAYERS, SIDE = 6, 32
BYTES = 4 * SIDE * SIDE


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SIDE, SIDE, generator=generator) / SIDE**0.5 for _ in range(LAYERS)]


@pytest.mark.parametrize(("compute_s", "swap_s"), [(0.03, 0.01), (0.01, 0.03)])
def test_both_orders_compute_the_same_in_the_time_of_the_theory(weights, compute_s, swap_s):
    host = checkpointing.SlowHost(weights, BYTES / swap_s)
    x, layer = torch.ones(2, SIDE), checkpointing.slow_layer(compute_s)
    seconds, results = [], []
    for order in (checkpointing.one_by_one, checkpointing.meanwhile):
        start = time.perf_counter()
        results.append(order(host.fetch, LAYERS, layer, x))
        seconds.append(time.perf_counter() - start)
    expected = x
    for weight in weights:
        expected = torch.relu(expected @ weight)
    assert torch.equal(results[0], expected) and torch.equal(results[1], expected)
    theory = Swapping([compute_s] * LAYERS, [swap_s] * LAYERS)
    assert seconds[0] >= theory.serial_s and seconds[1] >= theory.overlapped_s
    assert seconds[1] < seconds[0]


def test_two_layers_are_in_memory_at_most(weights):
    asked, computed = [], []

    def fetch(number):
        asked.append(number)
        assert number <= len(computed) + 1  # the one at work, and the next
        return weights[number]

    def layer(x, weight):
        time.sleep(0.005)
        computed.append(weight)
        return x @ weight

    checkpointing.meanwhile(fetch, LAYERS, layer, torch.ones(1, SIDE))
    assert asked == list(range(LAYERS))


def test_a_fetch_that_fails_is_heard():
    def fetch(number):
        raise OSError("no such layer")

    with pytest.raises(OSError, match="no such layer"):
        checkpointing.meanwhile(fetch, 2, lambda x, _: x, torch.ones(1))
