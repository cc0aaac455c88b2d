"""What a GPU shows beside what tensors need."""

import pytest
from every import every
from probes import JOB, SPREAD, ZERO_3, Probe, by_name

from course_lib.theory.inputs.layout import ALONE, Layout
from course_lib.theory.inputs.units import GIB
from course_lib.theory.memory.meter import (
    COMMUNICATOR_BYTES,
    communicators,
    metered_bytes,
)
from course_lib.theory.memory.peak import OVERHEAD_BYTES, gpu_memory

BILL = gpu_memory(JOB)


@every(
    ("layout", "count"),
    [(ALONE, 0), (Layout(dp=4), 2), (SPREAD, 5), (Layout(dp=4, tp=2, ep=2, zero_stage=1), 4)],
)
def test_all_ranks_and_each_axis_have_a_communicator(layout, count):
    assert communicators(layout) == count


def test_each_meter_shows_more_than_the_one_before():
    tensors = BILL.total_bytes - BILL.overhead_bytes
    assert metered_bytes(BILL, "allocated", SPREAD, buffers_bytes=GIB) == tensors
    reserved = metered_bytes(BILL, "reserved", SPREAD, buffers_bytes=GIB)
    assert reserved == pytest.approx(1.15 * tensors + GIB)
    shown = metered_bytes(BILL, "nvidia-smi", SPREAD, buffers_bytes=GIB)
    assert shown - reserved == pytest.approx(OVERHEAD_BYTES + 5 * COMMUNICATOR_BYTES)


REFUSED = [
    (lambda: metered_bytes(BILL, "top", ALONE), "meter 'top' is not one of"),
    (
        lambda: metered_bytes(BILL, "reserved", ALONE, reserved_over_allocated=0.5),
        "reserved_over_allocated must be at least 1",
    ),
]
PROBES = by_name(
    Probe(
        metered_bytes,
        {"bill": BILL, "meter": "nvidia-smi", "layout": SPREAD},
        {
            "bill": gpu_memory(JOB, 1),
            "meter": "reserved",
            "layout": ZERO_3,
            "buffers_bytes": 1,
            "reserved_over_allocated": 1.5,
        },
    ),
    Probe(communicators, {"layout": SPREAD}, {"layout": ZERO_3}),
)
