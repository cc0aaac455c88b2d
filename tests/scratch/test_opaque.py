"""Bytes without a meaning can be passed on, and cannot be added up."""

import pytest

from course_lib import launch, measure
from course_lib.scratch import opaque

RANKS = 3


def outcomes():
    """By family: right with types, right as bytes, bytes of all calls."""
    found = {}
    for family in opaque.FAMILIES:
        with measure.wire.log_wire() as log:
            typed = opaque.is_right(family, opaque.typed)
        handed = sum(total.size_bytes for total in log.sent().values())
        found[family] = typed, opaque.is_right(family, opaque.opaque), handed
    return found


@pytest.fixture(scope="module")
def ranks():
    return launch.run(outcomes, ranks=RANKS)


def test_with_types_all_families_are_right(ranks):
    assert all(typed for found in ranks for typed, _, _ in found.values())


def test_as_bytes_only_what_is_passed_on_survives(ranks):
    for found in ranks:
        assert {name for name, (_, blind, _) in found.items() if blind} == {"pipeline", "expert"}


def test_bytes_are_those_of_the_tensors(ranks):
    square, rows = 4 * opaque.HIDDEN**2, 4 * opaque.HIDDEN * opaque.ROWS
    tokens = 2 * 4 * opaque.HIDDEN * RANKS
    for rank, found in enumerate(ranks):
        sent = rows if rank + 1 < RANKS else 0
        handed = {name: size for name, (_, _, size) in found.items()}
        assert handed == {"data": square, "tensor": rows, "pipeline": sent, "expert": tokens}
