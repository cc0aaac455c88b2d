"""One training step under ZeRO, moment by moment: what each rank holds, and what it has sent.

The shortest form, as `scratch.zero` has it: nothing is gathered ahead. Source: Rajbhandari et al.
2020, arXiv:1910.02054, sections 5 and 7.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.theory.inputs.recipe import MIXED_16
from course_lib.theory.network.collectives import sent_bytes
from course_lib.validation import whole

_MOST = 10**9  # ranks
_LAYERS = 1000

Layers = tuple[int, ...]  # bytes of each layer, the first layer first


@dataclass(frozen=True)
class ZeroMoment:
    """What one rank holds after something has happened, in bytes by layer; all ranks are alike.

    `what` is "begin", "gather", "forward", "free", "backward", "reduce", "update" or "publish", and
    `layer` which one, from 0; None: all of them. `gathered`: whole weights that are there for a
    moment, beside the own part. `summed`: layers whose gradient is the sum over ranks. `published`:
    layers whose new weights every rank has that keeps them. `sent_bytes`: by a rank since "begin".
    """

    what: str
    layer: int | None
    weights: Layers
    gathered: Layers
    gradients: Layers
    states: Layers
    summed: tuple[bool, ...]
    published: tuple[bool, ...]
    sent_bytes: float

    @property
    def total_bytes(self) -> int:
        """Everything that the rank holds."""
        held = (self.weights, self.gathered, self.gradients, self.states)
        return sum(map(sum, held))


@dataclass(frozen=True)
class ZeroSteps:
    """A training step under `stage`; `layer_bytes`: a whole layer's weights, gradients, states."""

    stage: int
    ranks: int
    layer_bytes: tuple[int, int, int]
    moments: tuple[ZeroMoment, ...]

    @property
    def most_bytes(self) -> int:
        """The most that a rank holds at any moment."""
        return max(moment.total_bytes for moment in self.moments)


def zero_steps(layer_parameters: int, layers: int, ranks: int, stage: int) -> ZeroSteps:
    """Forward, backward and update of `layers` equal layers, with one micro-batch.

    2 bytes per parameter for weights, 2 for gradients, 12 for the optimizer with its fp32 master
    copy. Raises ValueError where `layer_parameters` is not a multiple of `ranks`: nothing here is
    padded.
    """
    whole("layer_parameters", layer_parameters)
    whole("layers", layers, most=_LAYERS)
    whole("ranks", ranks, most=_MOST)
    whole("stage", stage, least=0, most=3)
    if layer_parameters % ranks:
        raise ValueError(
            f"layer_parameters {layer_parameters} can't be cut into {ranks} equal parts: "
            "take a multiple of ranks"
        )
    rest = MIXED_16.bytes_per_parameter - MIXED_16.weight_bytes - MIXED_16.gradient_bytes
    each = (
        layer_parameters * MIXED_16.weight_bytes,
        layer_parameters * MIXED_16.gradient_bytes,
        layer_parameters * rest,
    )
    step = _Step(each, layers, ranks, stage)
    return ZeroSteps(stage, ranks, each, tuple(step.moments()))


class _Step:
    """The state of one rank while a step passes."""

    def __init__(
        self, layer_bytes: tuple[int, int, int], layers: int, ranks: int, stage: int
    ) -> None:
        self.weights_bytes, self.gradients_bytes, self.states_bytes = layer_bytes
        self.layers, self.ranks, self.stage = range(layers), ranks, stage
        self.gathered, self.gradients = [0] * layers, [0] * layers
        self.summed, self.published = [False] * layers, [False] * layers
        self.sent = 0.0

    def moments(self) -> Iterator[ZeroMoment]:
        """The step, in the order of `scratch.zero`."""
        yield self.moment("begin")
        for layer in self.layers:
            if self.stage == 3:
                yield self.gather(layer)
            yield self.moment("forward", layer)
            if self.stage == 3:
                self.gathered[layer] = 0
                yield self.moment("free", layer)
        for layer in reversed(self.layers):
            if self.stage == 3:
                yield self.gather(layer)
            self.gradients[layer] = self.gradients_bytes
            yield self.moment("backward", layer)
            if self.stage >= 2:
                yield self.reduce(layer)
        if self.stage < 2:
            yield from map(self.reduce, self.layers)
        self.gradients = [0 for _ in self.layers]
        self.published = [self.stage in (0, 3) for _ in self.layers]
        yield self.moment("update")
        if self.stage in (1, 2):
            yield from map(self.publish, self.layers)

    def gather(self, layer: int) -> ZeroMoment:
        self.send("all-gather", self.weights_bytes)
        self.gathered[layer] = self.weights_bytes
        return self.moment("gather", layer)

    def reduce(self, layer: int) -> ZeroMoment:
        """The gradient's sum over ranks: all of it, or this rank's part; whole weights may go."""
        self.send("reduce-scatter" if self.stage else "all-reduce", self.gradients_bytes)
        self.gradients[layer] = self.gradients_bytes // (self.ranks if self.stage else 1)
        self.summed[layer], self.gathered[layer] = True, 0
        return self.moment("reduce", layer)

    def publish(self, layer: int) -> ZeroMoment:
        self.send("all-gather", self.weights_bytes)
        self.published[layer] = True
        return self.moment("publish", layer)

    def send(self, operation: str, size_bytes: int) -> None:
        self.sent += sent_bytes(operation, size_bytes, self.ranks)

    def moment(self, what: str, layer: int | None = None) -> ZeroMoment:
        weights = self.weights_bytes // (self.ranks if self.stage == 3 else 1)
        states = self.states_bytes // (self.ranks if self.stage else 1)
        return ZeroMoment(
            what,
            layer,
            tuple(weights for _ in self.layers),
            tuple(self.gathered),
            tuple(self.gradients),
            tuple(states for _ in self.layers),
            tuple(self.summed),
            tuple(self.published),
            self.sent,
        )
