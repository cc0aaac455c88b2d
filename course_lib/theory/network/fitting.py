"""Fits α and β of a machine to the measured times of a collective at several sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from course_lib.checked import NotNegative, Positive, check_public
from course_lib.theory.inputs.hardware import Link
from course_lib.theory.inputs.units import format_number
from course_lib.theory.network import collectives


@dataclass(frozen=True)
class FittedLink:
    """The link of the α–β model that best fits measured times.

    `residual`: root mean square of (model - measured) / measured; 0 for an exact fit.
    """

    latency_s: float
    bytes_per_s: float
    residual: float

    @property
    def link(self) -> Link:
        """The fit as a Link."""
        return Link("fitted", self.bytes_per_s, self.latency_s)

    def explain(self) -> str:
        """The fit in one line."""
        alpha = format_number(self.latency_s * 1e6)
        beta = format_number(self.bytes_per_s / 1e6, 4)
        return (
            f"α = {alpha} µs a step, β = {beta} MB/s one way, off by {self.residual:.0%} "
            "(root mean square)"
        )


def fit_alpha_beta(
    operation: str,
    sizes_bytes: Sequence[NotNegative],
    seconds: Sequence[Positive],
    ranks: int,
) -> FittedLink:
    """Fit a ring's α and β by least relative squares: sum of ((steps · α + sent / β - t) / t)².

    Errors are relative because small sizes determine the latency, and large ones would outweigh
    them otherwise. Raises ValueError for fewer than two different sizes, and if the fitted latency
    is negative or the fitted time does not grow with size.
    """
    steps, sent = _sent(operation, sizes_bytes, seconds, ranks)
    level, slope = _line(sent, seconds, [1 / time**2 for time in seconds])
    if slope <= 0:
        span = f"{format_number(min(seconds), 2)} to {format_number(max(seconds), 2)}"
        raise ValueError(f"seconds do not grow with the sizes ({span} s): measure larger sizes")
    if level < -1e-9 * max(seconds):  # smaller values are rounding errors
        raise ValueError(
            f"latency comes out below zero ({format_number(level / steps, 2)} s): measure "
            "smaller sizes, or take the fastest of more repeats"
        )
    level = max(level, 0.0)
    errors = [(level + slope * x - time) / time for x, time in zip(sent, seconds, strict=True)]
    residual = sqrt(sum(error**2 for error in errors) / len(errors))
    return FittedLink(level / steps, 1 / slope, residual)


def bounding_link(
    operation: str, sizes_bytes: Sequence[NotNegative], seconds: Sequence[Positive], ranks: int
) -> Link:
    """Bounds on a ring's link from measured times that no line fits.

    A time is at least steps · α and at least sent / β. So α is at most the smallest time / steps,
    used as the link's latency, and β at least the largest sent / time, used as its bandwidth.
    Raises ValueError for invalid times and sizes, as `fit_alpha_beta` does.
    """
    steps, sent = _sent(operation, sizes_bytes, seconds, ranks)
    fastest = max(moved / time for moved, time in zip(sent, seconds, strict=True))
    return Link("bounds of a link", fastest, min(seconds) / steps)


def _sent(
    operation: str, sizes_bytes: Sequence[float], seconds: Sequence[float], ranks: int
) -> tuple[int, list[float]]:
    """Ring steps of a collective, and the bytes that a rank sends at each size."""
    if len(sizes_bytes) != len(seconds):
        raise ValueError(
            f"sizes_bytes has {len(sizes_bytes)} entries and seconds {len(seconds)}: give one time "
            "for each size"
        )
    if len(set(sizes_bytes)) < 2:
        raise ValueError(
            f"sizes_bytes must hold two different sizes or more, got {list(sizes_bytes)}: "
            "a line has two unknowns"
        )
    steps = collectives.steps(operation, ranks)
    if steps == 0:
        raise ValueError(f"ranks {ranks} send nothing: measure on 2 ranks or more")
    return steps, [collectives.sent_bytes(operation, size, ranks) for size in sizes_bytes]


def _line(
    xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Intercept and slope by weighted least squares, centred on the means to reduce rounding."""
    points = list(zip(xs, ys, weights, strict=True))
    total = sum(weights)
    mean_x = sum(w * x for x, _, w in points) / total
    mean_y = sum(w * y for _, y, w in points) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread
    return mean_y - slope * mean_x, slope


check_public(globals())
