"""The common event format: which rank does what, when, and with how many bytes.

`theory` predicts a trace, `measure` records one from a run, and figures, steppers, demos and build
checks read either kind. There is no other event type in the course.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Self

TAKE, FREE = "take", "free"  # the part is allocated at this time; it is freed at this time
ADD, COPY = "add", "copy"  # messages: the receiver adds the part to its copy, or overwrites it
SEND = "send-recv"  # the operation under which every point-to-point message is counted
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce")

Who = int  # a rank, a stage, a GPU, a node, a trainer


class Event(NamedTuple):
    """`who` does `what` to `part` from `at` until `end`, in steps or seconds; `end` 0: instantly.

    `part` is hashable: a number, a string, or a tuple such as ("weights", layer, slice).
    `to` is set for a message, whose `what` is "add" or "copy": what the receiver does with the
    part. "take" and "free" change what `who` holds. The name of a collective is one call by `who`,
    with the bytes of the whole tensor. Any other `what` is computation. `label` is display text.
    """

    at: float
    who: Who
    what: str
    part: Any = None
    to: Who | None = None
    bytes: int = 0
    end: float = 0.0
    label: str = ""

    @property
    def until(self) -> float:
        """End time of the event; equals `at` for an instantaneous event."""
        return max(self.at, self.end)

    @property
    def sends(self) -> str:
        """Operation under which the event is counted as traffic; "" if it sends nothing."""
        if self.to is not None:
            return SEND
        return self.what if self.what in COLLECTIVES else ""


class Held(NamedTuple):
    """A part that a rank holds: the ranks whose values are summed in it, its bytes, its label."""

    of: tuple[Who, ...]
    bytes: int = 0
    label: str = ""


class Total(NamedTuple):
    """Number of calls of one operation, and the total bytes of their tensors."""

    calls: int
    size_bytes: int


Holdings = Mapping[Who, Mapping[Any, Held]]


class Trace(tuple[Event, ...]):
    """Events sorted by start time; simultaneous events keep the order in which they were given."""

    def __new__(cls, events: Iterable[Event] = ()) -> Self:
        return super().__new__(cls, sorted(events, key=lambda event: event.at))

    @cached_property
    def who(self) -> tuple[Who, ...]:
        """All ranks that act or receive a message, sorted."""
        receivers = {event.to for event in self if event.to is not None}
        return tuple(sorted({event.who for event in self} | receivers))

    @cached_property
    def times(self) -> tuple[float, ...]:
        """All distinct start and end times, sorted."""
        return tuple(sorted({time for event in self for time in (event.at, event.until)}))

    def at(self, time: float) -> tuple[Event, ...]:
        """Events that begin exactly at `time`."""
        return tuple(event for event in self if event.at == time)

    def running(self, time: float) -> tuple[Event, ...]:
        """Events in progress at `time`: begun at or before it and not yet ended."""
        return tuple(event for event in self if event.at <= time < event.until)

    def held(self, time: float) -> Holdings:
        """What each rank holds once all events that end by `time` are done: {who: {part: Held}}.

        Simultaneous messages are sent in parallel: each carries what its sender held before.
        """
        held: dict[Who, dict[Hashable, Held]] = {who: {} for who in self.who}
        for end, events in self._changes:
            if end > time:
                break
            _apply(held, events)
        return held

    def sent(
        self,
        who: Who | None = None,
        until: float = float("inf"),
        axes: Mapping[str, str] | None = None,
    ) -> dict[str, Total]:
        """Calls and bytes by operation, for rank `who` or all ranks, of events begun by `until`.

        Operations are in order of first use, as in a communication log. `axes` maps event labels to
        axis names, which then prefix the operation, as in "tp all-reduce".
        """
        totals: dict[str, Total] = {}
        for event in self:
            if event.at <= until and who in (None, event.who) and (name := event.sends):
                name = f"{axes[event.label]} {name}" if axes else name
                calls, size = totals.get(name, (0, 0))
                totals[name] = Total(calls + 1, size + event.bytes)
        return totals

    def messages(self, who: Who) -> tuple[tuple[str, Who | None, int], ...]:
        """(operation, receiver, bytes) of everything `who` sends, in order and without times.

        A predicted and a recorded trace of the same program agree in this.
        """
        return tuple((e.sends, e.to, e.bytes) for e in self if e.who == who and e.sends)

    def lanes(self, row: Callable[[Event], str] | None = None) -> dict[str, tuple[Event, ...]]:
        """Events with a duration, grouped by row; by default one row per rank."""
        rows: dict[str, list[Event]] = {}
        for event in self:
            if event.until > event.at:
                name = row(event) if row else str(event.who)
                rows.setdefault(name, []).append(event)
        return {name: tuple(events) for name, events in rows.items()}

    def levels(self, who: Who) -> tuple[tuple[float, int], ...]:
        """(time, bytes that `who` holds from then on), for each time at which that changes."""
        levels: list[tuple[float, int]] = []
        for time, size in dict(self._sizes(who)).items():
            if not levels or levels[-1][1] != size:
                levels.append((time, size))
        return tuple(levels)

    def peak(self, who: Who) -> int:
        """Peak bytes held by `who`, with events applied one by one in trace order.

        Among simultaneous events, a part freed before another is taken makes room for it.
        """
        return max((size for _, size in self._sizes(who)), default=0)

    def _sizes(self, who: Who) -> Iterator[tuple[float, int]]:
        """(time, bytes that `who` holds) after each event that changes them."""
        held: dict[Hashable, int] = {}
        now = 0
        for time, events in self._changes:
            for event in events:
                if who == (event.who if event.to is None else event.to):
                    now -= held.pop(event.part, 0)
                    if event.what != FREE:
                        held[event.part] = event.bytes
                        now += event.bytes
                    yield time, now

    @cached_property
    def _changes(self) -> tuple[tuple[float, tuple[Event, ...]], ...]:
        """Events that change what a rank holds, grouped by end time."""
        changing = [event for event in self if event.what in (TAKE, FREE, ADD, COPY)]
        in_order = sorted(changing, key=lambda event: event.until)
        return tuple(
            (time, tuple(together)) for time, together in groupby(in_order, lambda e: e.until)
        )


def _apply(held: dict[Who, dict[Hashable, Held]], events: Iterable[Event]) -> None:
    before = {(e.who, e.part): held[e.who].get(e.part) for e in events if e.to is not None}
    for event in events:
        parts = held[event.who]
        if event.what == FREE:
            parts.pop(event.part, None)
        elif event.to is None:
            parts[event.part] = Held((event.who,), event.bytes, event.label)
        else:
            sent, had = before[event.who, event.part], held[event.to].get(event.part)
            of = sent.of if sent else (event.who,)
            if event.what == ADD and had:
                of = tuple(sorted(of + had.of))
            held[event.to][event.part] = Held(of, event.bytes, event.label)
