"""YaFSDP's two pairs of buffers: which layer's weights and gradients lie where, layer by layer."""

from collections.abc import Iterator

from course_lib.theory.memory.unit_life import GRADIENTS, WEIGHTS
from course_lib.trace import TAKE, Event, Trace
from course_lib.validation import whole

_MOST_LAYERS = 200


def buffer_turns(layers: int) -> Trace:
    """Each layer's forward pass, then each layer's backward pass, for layers 0 … layers - 1.

    A turn is a pass. Layer n uses buffer n mod 2: the part ("whole weights", 0) or ("gradients",
    1), whose label is the layer. While one computes, the next layer arrives in the other buffer,
    an "all-gather", unless it lies there from before; in the backward pass the gradients of the
    layer before leave, a "reduce-scatter". 2·layers - 2 gathers in all, one before the first turn.
    Source: github.com/yandex/YaFSDP, version 1, 2024. Raises ValueError for fewer than two layers.
    """
    whole("layers", layers, least=2, most=_MOST_LAYERS)
    return Trace(_events(layers))


def _events(layers: int) -> Iterator[Event]:
    there = [("forward", layer, layer + 1) for layer in range(layers)]
    back = [("backward", layer, layer - 1) for layer in reversed(range(layers))]
    held = [0, -1]  # in the buffers of weights
    yield Event(0, 0, TAKE, (WEIGHTS, 0), label="0")
    for turn, (phase, layer, following) in enumerate(there + back):
        now, end = turn, turn + 1
        yield Event(now, 0, phase, layer, end=end, label=str(layer))
        if 0 <= following < layers and held[following % 2] != following:
            held[following % 2] = following
            label = str(following)
            yield Event(now, 0, TAKE, (WEIGHTS, following % 2), label=label)
            yield Event(now, 0, "all-gather", following, end=end, label=label)
        if phase == "backward":
            yield Event(now, 0, TAKE, (GRADIENTS, layer % 2), label=str(layer))
            if layer + 1 < layers:
                yield Event(now, 0, "reduce-scatter", layer + 1, end=end, label=str(layer + 1))
