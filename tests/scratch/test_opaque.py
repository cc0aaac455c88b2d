"""Bytes without a meaning can be passed on, and cannot be added up."""

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


def test_with_types_all_families_are_right_and_as_bytes_only_those_that_pass_on():
    square, rows = 4 * opaque.HIDDEN**2, 4 * opaque.HIDDEN * opaque.ROWS
    tokens = 2 * 4 * opaque.HIDDEN * RANKS
    for rank, found in enumerate(launch.run(outcomes, ranks=RANKS)):
        sent = rows if rank + 1 < RANKS else 0
        assert found == {
            "data": (True, False, square),
            "tensor": (True, False, rows),
            "pipeline": (True, True, sent),
            "expert": (True, True, tokens),
        }
