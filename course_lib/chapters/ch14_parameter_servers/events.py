"""Writes down what happens in a process, so that several can be compared."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """`at_s` is wall-clock time, one clock for all processes of a machine."""

    process: str
    what: str
    at_s: float


@dataclass
class EventLog:
    """The events of one process, in order."""

    process: str
    events: list[Event] = field(default_factory=list)

    def mark(self, what: str) -> None:
        """Something happens now, in whichever thread of the process."""
        self.events.append(Event(self.process, what, time.time()))


def in_order(events: list[Event], since_s: float) -> list[Event]:
    """Events of all processes from `since_s` on, by their time after it."""
    later = [event for event in events if event.at_s >= since_s]
    later.sort(key=lambda event: event.at_s)
    return [Event(it.process, it.what, it.at_s - since_s) for it in later]
