"""Exchanges and buckets of DDP; the demo's test compares them with real all-reduces."""

from probes import Probe, by_name

from course_lib.theory.inputs.units import MIB
from course_lib.theory.network.buckets import ddp_all_reduces, ddp_buckets, gradient_syncs


def test_no_sync_exchanges_once_per_window():
    assert gradient_syncs(320, 32, no_sync=False) == 320
    assert gradient_syncs(320, 32, no_sync=True) == 10
    assert gradient_syncs(321, 32, no_sync=True) == 11


def test_the_first_bucket_is_small():
    buckets = ddp_buckets([MIB // 2] * 60)
    assert buckets == [MIB, 25 * MIB, 4 * MIB]


def test_a_bucket_closes_once_its_limit_is_reached():
    assert ddp_buckets([30 * MIB, 1], cap_bytes=25 * MIB) == [30 * MIB, 1]
    assert ddp_buckets([4, 4, 4], cap_bytes=4, first_bytes=100) == [4, 4, 4]
    assert ddp_buckets([]) == []


def test_the_first_exchange_has_one_bucket():
    assert ddp_all_reduces(syncs=10, buckets=3) == 1 + 9 * 3


REFUSED = [
    (lambda: gradient_syncs(0, 1, True), "micro_steps"),
    (lambda: gradient_syncs(1, 0, True), "accumulation"),
    (lambda: gradient_syncs(1, 1, "yes"), "no_sync"),
    (lambda: ddp_buckets([4, 0]), r"gradient_bytes\[1\]"),
    (lambda: ddp_buckets([4], cap_bytes=0), "cap_bytes"),
    (lambda: ddp_buckets([4], first_bytes=-1), "first_bytes"),
    (lambda: ddp_all_reduces(0, 1), "syncs"),
    (lambda: ddp_all_reduces(1, 0), "buckets"),
]
PROBES = by_name(
    Probe(
        gradient_syncs,
        {"micro_steps": 8, "accumulation": 4, "no_sync": True},
        {"micro_steps": 16, "accumulation": 2, "no_sync": False},
    ),
    Probe(
        ddp_buckets,
        {"gradient_bytes": [4] * 8, "cap_bytes": 8, "first_bytes": 4},
        {"gradient_bytes": [4] * 9, "cap_bytes": 12, "first_bytes": 8},
    ),
    Probe(ddp_all_reduces, {"syncs": 3, "buckets": 4}, {"syncs": 5, "buckets": 6}),
)
