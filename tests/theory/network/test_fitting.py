"""The fit finds the link that made the times, and says when there is none."""

import random

import pytest
from every import every
from refused import rows

from course_lib.theory.inputs.hardware import Link
from course_lib.theory.network.collectives import seconds
from course_lib.theory.network.fitting import bounding_link, fit_alpha_beta

SIZES = [4.0**power for power in range(5, 13)]


def times(operation="all-reduce", ranks=4, alpha=2e-5, beta=1.2e10):
    return [seconds(operation, size, ranks, Link("link", beta, alpha)) for size in SIZES]


@every("ranks", [2, 3, 8, 1024])
@every(("alpha", "beta"), [(2e-5, 1.2e10), (1e-3, 2.5e7), (0.0, 1e9)])
@every("operation", ["all-reduce", "all-gather", "all-to-all", "send-recv"])
def test_it_recovers_the_link_that_made_the_times(operation, alpha, beta, ranks):
    fit = fit_alpha_beta(operation, SIZES, times(operation, ranks, alpha, beta), ranks)
    assert fit.latency_s == pytest.approx(alpha, rel=1e-9, abs=1e-15)
    assert fit.bytes_per_s == pytest.approx(beta, rel=1e-9)
    assert fit.residual < 1e-9


def test_no_nearby_link_is_better():
    """The least sum of squared relative errors, without trusting the algebra."""
    noise = random.Random(0)
    made = [time * noise.uniform(0.8, 1.2) for time in times()]
    fit = fit_alpha_beta("all-reduce", SIZES, made, 4)

    def error(alpha, beta):
        model = [seconds("all-reduce", size, 4, Link("link", beta, alpha)) for size in SIZES]
        return sum(((m - t) / t) ** 2 for m, t in zip(model, made, strict=True))

    best = error(fit.latency_s, fit.bytes_per_s)
    assert fit.residual == pytest.approx((best / len(SIZES)) ** 0.5)
    for factor in (0.99, 1.01):
        assert error(fit.latency_s * factor, fit.bytes_per_s) > best
        assert error(fit.latency_s, fit.bytes_per_s * factor) > best


def test_bounds_hold_for_the_link_that_made_the_times_and_for_times_that_no_line_fits():
    link = bounding_link("all-reduce", SIZES, times(), 4)
    assert 2e-5 <= link.latency_s < 1.01 * 2e-5
    assert 0.9 * 1.2e10 < link.bytes_per_s <= 1.2e10
    busy = bounding_link("all-reduce", [1e3, 1e6], [6e-3, 3e-3], 4)
    assert busy.latency_s == pytest.approx(3e-3 / 6)
    assert busy.bytes_per_s == pytest.approx(1.5e6 / 3e-3)


REFUSED = [
    *rows(
        lambda sizes, measured, ranks: fit_alpha_beta("all-reduce", sizes, measured, ranks),
        [
            ([1000, 1000], [1e-3, 2e-3], 2, "two different sizes or more"),
            ([1000, 2000], [1e-3], 2, "one time for each size"),
            ([1000, 2000], [1e-3, 1e-3], 2, "seconds do not grow with the sizes"),
            ([1000, 2000], [1e-3, 4e-3], 2, "latency comes out below zero"),
            ([1000, 2000], [1e-3, 2e-3], 1, "measure on 2 ranks or more"),
        ],
    ),
    (lambda: bounding_link("all-reduce", [1e3, 1e6], [1e-3, 3e-3], 1), "ranks 1 send nothing"),
]
RECORDS = {
    "FittedLink": [
        fit_alpha_beta("all-reduce", [1e3, 1e5, 1e6], measured, 4)
        for measured in ([1e-3, 1e-2, 1e-1], [2e-3, 1e-2, 3e-1])
    ]
}
