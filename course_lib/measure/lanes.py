"""Writes down when functions ran: a lane of intervals for each of them."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Interval = tuple[float, float]  # start, end

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Lanes:
    """When watched functions ran, by lane; one clock, in seconds."""

    def __init__(self) -> None:
        self.intervals: dict[str, list[Interval]] = {}

    def watched(
        self, lane: str, function: Callable[_P, _R]
    ) -> Callable[_P, _R]:
        """The same function; each call adds an interval to its lane."""
        intervals = self.intervals.setdefault(lane, [])

        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            intervals.append((start, time.perf_counter()))
            return result

        return call

    @property
    def start_s(self) -> float:
        """When the first call began."""
        return min(
            start for lane in self.intervals.values() for start, _ in lane
        )

    @property
    def seconds(self) -> float:
        """From the start of the first call to the end of the last one."""
        last = max(end for lane in self.intervals.values() for _, end in lane)
        return last - self.start_s

    def lengths_s(self, lane: str) -> list[float]:
        """How long each call of this lane took."""
        return [end - start for start, end in self.intervals[lane]]

    def in_ms(self, *lanes: str) -> list[list[Interval]]:
        """These lanes in milliseconds from the first call on."""
        first = self.start_s
        return [
            [
                (1000 * (start - first), 1000 * (end - first))
                for start, end in self.intervals[lane]
            ]
            for lane in lanes
        ]
