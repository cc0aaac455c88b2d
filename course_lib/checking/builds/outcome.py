"""What a rank of a check leaves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.measure.wire import WireLog


@dataclass(frozen=True)
class Outcome:
    """What one rank returned, the messages and collectives that it sent on the way.

    `borrowed`: what of the course's own version the learner's code has called.
    """

    value: Any
    wire: "WireLog"
    borrowed: frozenset[str] = frozenset()
