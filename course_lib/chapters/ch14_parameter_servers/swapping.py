"""Layers whose weights wait in the host's memory: how much of their way hides behind computing."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.validation import listed, number


@checked
@dataclass(frozen=True)
class Swapping:
    """Layers one after another; while one computes, the next one's weights are copied.

    `compute_s` and `swap_s` have an entry for each layer. There is room for two layers: the one at
    work and the next. Raises ValueError for no layers, more than 100,000, or two numbers of them.
    Source: Cui et al. 2016, "GeePS", doi:10.1145/2901318.2901323.
    """

    compute_s: Sequence[float]
    swap_s: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("compute_s", "swap_s"):
            times = getattr(self, name)
            listed(f"layers of {name}", len(times), "take fewer", most=100_000)
            for layer, seconds in enumerate(times):
                number(f"{name}[{layer}]", seconds, least=0, most=1e9)
        if not self.compute_s or len(self.compute_s) != len(self.swap_s):
            raise ValueError(
                f"swap_s has {len(self.swap_s)} layers and compute_s {len(self.compute_s)}: give "
                "as many of each, at least one"
            )

    @property
    def exposed_s(self) -> list[float]:
        """What each layer waits: max(0, swap - compute of the layer before); the first, all."""
        before = [0.0, *self.compute_s[:-1]]
        return [max(0.0, swap - it) for swap, it in zip(self.swap_s, before, strict=True)]

    @property
    def serial_s(self) -> float:
        """Where each layer is copied and then computed."""
        return sum(self.swap_s) + sum(self.compute_s)

    @property
    def overlapped_s(self) -> float:
        """Where the next layer is copied meanwhile: computing, and what is exposed."""
        return sum(self.compute_s) + sum(self.exposed_s)
