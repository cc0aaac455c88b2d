"""Bytes of local SGD: of DDP, and less."""

from probes import Probe, by_name

from course_lib.chapters.ch14_parameter_servers.local_sgd import averaged_bytes
from course_lib.theory.network.collectives import sent_bytes


def test_bytes_fall_by_the_updates_between_averages():
    assert averaged_bytes(1000, 4, 1) == sent_bytes("all-reduce", 1000, 4) == 1500
    assert averaged_bytes(1000, 4, 10) == 150
    assert averaged_bytes(1000, 1, 10) == 0


REFUSED = [
    (lambda: averaged_bytes(1000, 4, 0), "every must be at least 1"),
]
PROBES = by_name(
    Probe(
        averaged_bytes,
        {"weight_bytes": 1000, "ranks": 4, "every": 2},
        {"weight_bytes": 2000, "ranks": 2, "every": 4},
    ),
)
