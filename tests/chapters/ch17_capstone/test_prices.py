"""Prices are dated, sourced, and of cards that exist."""

import re

from probes import Probe, by_name

from course_lib.chapters.ch17_capstone.prices import PRICES, HourPrice
from course_lib.theory.inputs.hardware import ACCELERATORS, Cluster, accelerator


def test_every_price_says_when_and_who():
    assert set(PRICES) <= set(ACCELERATORS)
    for price in PRICES.values():
        assert re.fullmatch(r"[A-Z][a-z]+ 20\d\d", price.date) and "." in price.source
        assert price.source in price.explain()


def test_deepseeks_price_is_the_default_of_a_cluster():
    assert Cluster(accelerator("H800-SXM")).gpu_hour_usd == PRICES["H800-SXM"].usd


REFUSED = [
    (lambda: HourPrice(-1, "May 2026", "nobody"), "usd must be at least 0"),
]
PROBES = by_name(
    Probe(
        HourPrice,
        {"usd": 2.0, "date": "May 2026", "source": "a"},
        {"usd": 3.0, "date": "June 2026", "source": "b"},
        see=lambda price: price.explain(),
    ),
)
