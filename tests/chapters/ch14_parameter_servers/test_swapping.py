"""Swapping: by hand, and against threads that sleep."""

import pytest
from probes import Given, Probe, by_name
from refused import rows

from course_lib.chapters.ch14_parameter_servers.swapping import Swapping


def test_three_layers_by_hand():
    # 0-3 the first is copied; 3-5 it computes, and the second comes until 7; 7-12 the second
    # computes, and the third has come at 8; 12-13.
    run = Swapping((2, 5, 1), (3, 4, 1))
    assert run.exposed_s == [3, 2, 0]
    assert run.overlapped_s == 13
    assert run.serial_s == 16


def test_a_slow_link_decides_and_a_fast_one_is_hidden():
    slow, fast = Swapping([1] * 10, [3] * 10), Swapping([3] * 10, [1] * 10)
    assert slow.serial_s == fast.serial_s == 40
    assert slow.overlapped_s == 31  # all copies, and the last layer
    assert fast.overlapped_s == 31  # one copy, and all layers
    assert sum(fast.exposed_s[1:]) == 0


def test_too_many_layers_are_refused_before_they_are_looked_at():
    many = [1] * 100_001
    with pytest.raises(ValueError, match="layers of compute_s 100001 is above 100,000"):
        Swapping(many, many)


REFUSED = [
    *rows(
        Swapping,
        [
            ([], [], "swap_s has 0 layers and compute_s 0"),
            ([1], [1, 2], "swap_s has 2 layers and compute_s 1"),
            ([1], [-1], r"swap_s\[0\] must be at least 0"),
        ],
    ),
]
PROBES = by_name(
    Probe(
        Swapping,
        {"compute_s": (2.0, 5.0, 1.0), "swap_s": (3.0, 4.0, 1.0)},
        {"compute_s": (3.0, 5.0, 1.0), "swap_s": Given((3.0, 6.0, 1.0))},
        see=lambda run: [*run.exposed_s, run.serial_s, run.overlapped_s],
    ),
)
