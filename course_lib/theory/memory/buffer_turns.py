"""YaFSDP's two pairs of buffers: which layer's weights and gradients lie where, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.validation import whole

_MOST_LAYERS = 200
Pair = tuple[int | None, int | None]  # layers in the even and in the odd buffer


@dataclass(frozen=True)
class BufferMoment:
    """While `layer` computes: what lies in the buffers, what arrives in one, and leaves another."""

    phase: str  # "forward" or "backward"
    layer: int
    weights: Pair
    gradients: Pair
    arriving: int | None  # the layer whose weights are on their way into their buffer
    leaving: int | None  # the layer whose gradients are on their way out of theirs


def buffer_turns(layers: int) -> tuple[BufferMoment, ...]:
    """Each layer's forward pass, then each layer's backward pass, for layers 0 … layers - 1.

    Layer n uses buffer n mod 2. While it computes, the next layer arrives in the other buffer,
    unless it lies there from before; in the backward pass the gradients of the layer before leave.
    2·layers - 2 gathers in all. Source: github.com/yandex/YaFSDP, version 1, 2024.
    Raises ValueError for fewer than two layers.
    """
    whole("layers", layers, least=2, most=_MOST_LAYERS)
    weights: list[int | None] = [None, None]
    gradients: list[int | None] = [None, None]
    there = [("forward", layer, layer + 1) for layer in range(layers)]
    back = [("backward", layer, layer - 1) for layer in reversed(range(layers))]
    found = []
    for phase, layer, following in there + back:
        weights[layer % 2] = layer
        arriving = None
        if 0 <= following < layers and weights[following % 2] != following:
            arriving = weights[following % 2] = following
        leaving = None
        if phase == "backward":
            gradients[layer % 2] = layer
            leaving = layer + 1 if layer + 1 < layers else None
        found.append(
            BufferMoment(phase, layer, _pair(weights), _pair(gradients), arriving, leaving)
        )
    return tuple(found)


def _pair(held: Sequence[int | None]) -> Pair:
    even, odd = held
    return even, odd
