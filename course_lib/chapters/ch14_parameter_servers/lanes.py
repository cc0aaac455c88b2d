"""Records when functions ran: a lane of events for each of them."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from course_lib.trace import Event

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Lanes:
    """The calls of watched functions, by lane, on one clock in seconds."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Event]] = {}

    def watched(self, lane: str, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Wrap `function` so that each call adds an event to `lane`."""
        row = self.rows.setdefault(lane, [])

        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            row.append(Event(start, 0, lane, end=time.perf_counter()))
            return result

        return call

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first call to the end of the last one."""
        events = [event for row in self.rows.values() for event in row]
        return max(e.until for e in events) - min(e.at for e in events)

    def lengths_s(self, lane: str) -> list[float]:
        """Seconds that each call of this lane took."""
        return [event.until - event.at for event in self.rows[lane]]
