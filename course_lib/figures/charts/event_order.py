"""What happened in several processes, one line an event, the earliest on top."""

from collections.abc import Sequence
from typing import Protocol

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted

_TIMES, _LANES, _LANE = 62, 92, 58  # x of the times, of the first process, and between processes
_TOP, _LINE = 44, 16
_MOST = 4  # processes


class Event(Protocol):
    """One moment of one process, as measure.events.Event; seconds count from the first."""

    @property
    def process(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def at_s(self) -> float: ...


def event_order(events: Sequence[Event], processes: Sequence[str]) -> Sheet:
    """A column for each process, a dot for each event, its time and its words beside it.

    Lines are equally far apart, however much time is between them. Raises ValueError without
    events, for more than four processes, or for an event of a process that is not among them.
    """
    if not events:
        raise ValueError("events is empty: give at least one event")
    if not 1 <= len(processes) <= _MOST:
        raise ValueError(
            f"processes has {len(processes)} entries, and the figure has room for 1 to "
            f"{_MOST}: leave some out"
        )
    for event in events:
        if event.process not in processes:
            raise ValueError(
                f"processes {list(processes)} lacks {event.process!r}, of which there is an event: "
                "add it"
            )
    bottom = _TOP + _LINE * len(events)
    sheet = Sheet(bottom + 8, _sentence(events, processes))
    columns = {process: _LANES + _LANE * place for place, process in enumerate(processes)}
    for process, x in columns.items():
        sheet.write(x, 14, process, align="center", bold=True)
        sheet.line([(x, 22), (x, bottom)], style.GREY)
    sheet.write(_TIMES, 14, "ms", align="right", colour=style.GREY)
    words = _LANES + _LANE * (len(processes) - 1) + 14
    for place, event in enumerate(events):
        y = _TOP + _LINE * place
        x = columns[event.process]
        sheet.line([(x, y - 4), (words - 4, y - 4)], style.PALE)
        sheet.write(_TIMES, y, f"{1000 * event.at_s:.1f}", align="right", colour=style.GREY)
        sheet.dot(x, y - 4, style.INK, radius=3)
        sheet.write(words, y, event.what)
    return sheet


def _sentence(events: Sequence[Event], processes: Sequence[str]) -> str:
    last = 1000 * max(event.at_s for event in events)
    each = ", ".join(
        f"{process} {sum(event.process == process for event in events)}" for process in processes
    )
    return (
        f"{counted(len(events), 'event')} within {last:.1f} ms ({each}): "
        + "; ".join(f"{event.process} {event.what}" for event in events)
        + "."
    )
