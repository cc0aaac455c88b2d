"""Activation recomputation, and layer weights fetched from the host."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.scratch.gpt import GPT

# Activation checkpointing: keep a segment's input, recompute the rest.
#
# Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost,
# arXiv:1604.06174, section 3: with segments of √L layers out of L, about 2·√L
# layers' results are alive at once, for one more forward pass.


RandomState = tuple[Tensor, Tensor | None]  # of the CPU, of the GPU


class Checkpoint(Function):
    """Runs `layers` without a graph; backward runs them again, with one.

    The parameters are arguments so that autograd tracks them; apart from
    them only `x` is saved. torch's own version also restores autocast.
    """

    @staticmethod
    def forward(
        ctx: Any, layers: nn.Module, x: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        ctx.layers, ctx.parameters = layers, parameters
        ctx.random = random_state(x.device)
        ctx.save_for_backward(x)
        return layers(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad(), same_random_numbers(ctx.random, x.device):
            output = ctx.layers(x)
        inputs = (x, *ctx.parameters)
        return None, *torch.autograd.grad(output, inputs, gradient)


class Segment(nn.Module):
    """Consecutive layers, of which only the first one's input is saved."""

    function: type[Function] = Checkpoint

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        trained = [p for p in self.parameters() if p.requires_grad]
        output: Tensor = self.function.apply(self.layers, x, *trained)
        return output


def cut(model: GPT, size: int, segment: type[nn.Module] = Segment) -> GPT:
    """Group the blocks of `model` into segments of `size`, in place.

    The last segment may be shorter. Parameters keep their order, not names.
    """
    blocks = list(model.blocks)
    starts = range(0, len(blocks), size)
    pieces = [segment(*blocks[start : start + size]) for start in starts]
    model.blocks = nn.ModuleList(pieces)
    return model


def random_state(device: torch.device) -> RandomState:
    """The current state of the random generators that dropout uses."""
    gpu = device.type == "cuda"
    state = torch.cuda.get_rng_state(device) if gpu else None
    return torch.get_rng_state(), state


@contextmanager
def same_random_numbers(
    state: RandomState, device: torch.device
) -> Iterator[None]:
    """Replay the random numbers drawn after `state`: same dropout masks."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):  # afterwards as if nothing was drawn
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        yield


# Layers in host memory, fetched one by one or prefetched during compute.
#
# Cui et al. 2016, "GeePS", doi:10.1145/2901318.2901323: a model that does not
# fit on a GPU is kept in host memory; a separate thread fetches each layer
# before it is needed.


Fetch = Callable[[int], Tensor]
Layer = Callable[[Tensor, Tensor], Tensor]


class SlowHost:
    """The weights of all layers, behind a link of `bytes_per_s`."""

    def __init__(self, weights: list[Tensor], bytes_per_s: float) -> None:
        self.weights, self.bytes_per_s = weights, bytes_per_s

    def fetch(self, number: int) -> Tensor:
        """Copy one layer's weights, taking as long as the link would."""
        weight = self.weights[number]
        time.sleep(weight.nbytes / self.bytes_per_s)
        return weight.clone()


def one_by_one(fetch: Fetch, layers: int, layer: Layer, x: Tensor) -> Tensor:
    """Fetch and compute the layers strictly in turn, without overlap."""
    for number in range(layers):
        x = layer(x, fetch(number))
    return x


def meanwhile(fetch: Fetch, layers: int, layer: Layer, x: Tensor) -> Tensor:
    """Prefetch the next layer in a thread: two layers are in memory."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        coming = thread.submit(fetch, 0)
        for number in range(layers):
            weight = coming.result()  # blocks until it has arrived
            if number + 1 < layers:
                coming = thread.submit(fetch, number + 1)
            x = layer(x, weight)
    return x


def slow_layer(seconds: float) -> Layer:
    """A layer relu(x·w) that takes `seconds`, as a large one would."""

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        time.sleep(seconds)
        return torch.relu(x @ weight)

    return layer
