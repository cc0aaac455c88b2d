"""Layers from the host's memory: fetched one by one, or while others compute.

Cui et al. 2016, "GeePS", doi:10.1145/2901318.2901323: a model that does not
fit into a GPU is kept in the host's memory, from which a thread of its own
brings each layer before it is needed.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

Fetch = Callable[[int], Tensor]
Layer = Callable[[Tensor, Tensor], Tensor]


class SlowHost:
    """Weights of all layers, behind a link of so many bytes per second."""

    def __init__(self, weights: list[Tensor], bytes_per_s: float) -> None:
        self.weights, self.bytes_per_s = weights, bytes_per_s

    def fetch(self, number: int) -> Tensor:
        """A copy of the weights of one layer; takes as long as the link."""
        weight = self.weights[number]
        time.sleep(weight.nbytes / self.bytes_per_s)
        return weight.clone()


def one_by_one(fetch: Fetch, layers: int, layer: Layer, x: Tensor) -> Tensor:
    """Fetch a layer, compute it, fetch the next."""
    for number in range(layers):
        x = layer(x, fetch(number))
    return x


def meanwhile(fetch: Fetch, layers: int, layer: Layer, x: Tensor) -> Tensor:
    """While a layer computes, a thread fetches the next: two are in memory."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        coming = thread.submit(fetch, 0)
        for number in range(layers):
            weight = coming.result()  # waits, if it is not there yet
            if number + 1 < layers:
                coming = thread.submit(fetch, number + 1)
            x = layer(x, weight)
    return x


def slow_layer(seconds: float) -> Layer:
    """relu(x·w), in the time that a large layer would take."""

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        time.sleep(seconds)
        return torch.relu(x @ weight)

    return layer
