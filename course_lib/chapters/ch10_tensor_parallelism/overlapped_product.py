"""A matrix product that overlaps with the collective of its operand: async tensor parallelism."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.network.tensor_parallel import CutLayer
from course_lib.trace import Event
from course_lib.validation import number, whole

# Weights in units of h², 12h² in a layer. The collective is an all-gather before qkv and up,
# a reduce-scatter after out and down.
_WEIGHTS = {"qkv": 3, "out": 1, "up": 4, "down": 4}


@dataclass(frozen=True)
class OverlappedProduct:
    """A product and its all-gather (or reduce-scatter), cut into the shares of `ranks` GPUs.

    A rank multiplies its own share at once, while the next one travels. `compute_s` is the whole
    product and `communication_s` the whole collective, in seconds. The model is ideal: 1/n of the
    product takes 1/n of its time, and messages do not slow it down. Source: Wang et al. 2023,
    ASPLOS, doi.org/10.1145/3567955.3567959. Raises ValueError for fewer than two ranks or more
    than 4096, and for times that are not positive.
    """

    compute_s: float
    communication_s: float
    ranks: int

    def __post_init__(self) -> None:
        number("compute_s", self.compute_s, above=0)
        number("communication_s", self.communication_s, above=0)
        whole("ranks", self.ranks, least=2, most=4096)

    @property
    def seconds(self) -> float:
        """max(compute, communication + compute / ranks): the last share is multiplied last."""
        return max(self.compute_s, self.communication_s + self.compute_s / self.ranks)

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that nothing hides: seconds - compute."""
        return self.seconds - self.compute_s

    @property
    def tasks(self) -> tuple[Event, ...]:
        """When each share arrives ("all-gather") and is multiplied ("forward"); share 0 is here."""
        hop, part = self.communication_s / (self.ranks - 1), self.compute_s / self.ranks
        events: list[Event] = []
        free_s = 0.0
        for share in range(self.ranks):
            end_s, label = share * hop, str(share)
            if share:
                events.append(Event(end_s - hop, 0, "all-gather", share, end=end_s, label=label))
            start_s = max(free_s, end_s)
            free_s = start_s + part
            events.append(Event(start_s, 0, "forward", share, end=free_s, label=label))
        return tuple(events)


@checked
def layer_products(layer: CutLayer) -> dict[str, OverlappedProduct]:
    """The four products of a layer, {"qkv": …, "out": …, "up": …, "down": …}, under overlap.

    Each runs twice: forward, and for the gradient of the input. With sequence parallelism each
    has one collective, an eighth of the layer's communication. Source: Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.2. Raises ValueError for a layer on one GPU.
    """
    forward_s, each_s = layer.compute_s / 3, layer.communication_s / 8
    return {
        name: OverlappedProduct(forward_s * weights / 12, each_s, layer.tp)
        for name, weights in _WEIGHTS.items()
    }


def overlapped_seconds(layer: CutLayer) -> float:
    """Seconds of a layer, forward and backward, whose eight collectives overlap with its products.

    The four products are computed twice. The weights' gradients, a third of the arithmetic, send
    nothing and are not used to hide anything. Raises ValueError for a layer on one GPU.
    """
    twice = 2 * sum(product.seconds for product in layer_products(layer).values())
    return twice + layer.compute_s / 3
