"""Exchanges and buckets of DDP. The demo's test compares them with real all-reduces."""

import pytest

from course_lib.theory import communication
from course_lib.theory.units import MIB


def test_no_sync_exchanges_once_per_window():
    assert communication.gradient_syncs(320, 32, no_sync=False) == 320
    assert communication.gradient_syncs(320, 32, no_sync=True) == 10
    assert communication.gradient_syncs(321, 32, no_sync=True) == 11


def test_the_first_bucket_is_small():
    buckets = communication.ddp_buckets([MIB // 2] * 60)
    assert buckets == [MIB, 25 * MIB, 4 * MIB]


def test_a_bucket_closes_once_its_limit_is_reached():
    assert communication.ddp_buckets([30 * MIB, 1], cap_bytes=25 * MIB) == [30 * MIB, 1]
    assert communication.ddp_buckets([4, 4, 4], cap_bytes=4, first_bytes=100) == [4, 4, 4]
    assert communication.ddp_buckets([]) == []


def test_the_first_exchange_has_one_bucket():
    assert communication.ddp_all_reduces(syncs=10, buckets=3) == 1 + 9 * 3


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: communication.gradient_syncs(0, 1, True), "micro_steps"),
        (lambda: communication.gradient_syncs(1, 0, True), "accumulation"),
        (lambda: communication.gradient_syncs(1, 1, "yes"), "no_sync"),
        (lambda: communication.ddp_buckets([4, 0]), r"gradient_bytes\[1\]"),
        (lambda: communication.ddp_buckets([4], cap_bytes=0), "cap_bytes"),
        (lambda: communication.ddp_buckets([4], first_bytes=-1), "first_bytes"),
        (lambda: communication.ddp_all_reduces(0, 1), "syncs"),
        (lambda: communication.ddp_all_reduces(1, 0), "buckets"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=name):
        call()
