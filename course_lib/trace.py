"""One language for who does what, when, with how many bytes.

The theory tells a trace of what will happen, `measure` writes one down of what did, and figures,
steppers, demos and checks of builds read either. Nothing else in the course is an event.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Self

TAKE, FREE = "take", "free"  # the part is there from now on; it is gone from now on
ADD, COPY = "add", "copy"  # messages: the receiver adds the part to its own; puts it in its place
SEND = "send-recv"  # what every message is to those who count
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce")

Who = int  # a rank, a stage, a GPU, a node, a trainer


class Event(NamedTuple):
    """`who` does `what` with `part`, from `at` until `end` (or at once), in steps or in seconds.

    `part` is hashable: a number, a word, or a tuple such as ("weights", layer, slice).
    `to` is given for a message: "add" or "copy" say what its receiver does with it. "take" and
    "free" change what `who` holds. A collective's name counts as one call of `who`, with the bytes
    of the whole tensor. Every other word is work. `label` is for readers.
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
        """When it is over; `at` for what takes no time."""
        return max(self.at, self.end)

    @property
    def sends(self) -> str:
        """The name under which it counts as sent; "" for what sends nothing."""
        if self.to is not None:
            return SEND
        return self.what if self.what in COLLECTIVES else ""


class Held(NamedTuple):
    """A part that somebody holds: whose numbers are summed in it, its bytes, its label."""

    of: tuple[Who, ...]
    bytes: int = 0
    label: str = ""


class Total(NamedTuple):
    """How many calls of an operation, and the bytes of all their tensors."""

    calls: int
    size_bytes: int


Holdings = Mapping[Who, Mapping[Any, Held]]


class Trace(tuple[Event, ...]):
    """Events in the order in which they begin; those of one time in the order they were told."""

    def __new__(cls, events: Iterable[Event] = ()) -> Self:
        return super().__new__(cls, sorted(events, key=lambda event: event.at))

    @cached_property
    def who(self) -> tuple[Who, ...]:
        """Everybody who does or gets something, in order."""
        receivers = {event.to for event in self if event.to is not None}
        return tuple(sorted({event.who for event in self} | receivers))

    @cached_property
    def times(self) -> tuple[float, ...]:
        """Every time at which something begins or ends."""
        return tuple(sorted({time for event in self for time in (event.at, event.until)}))

    def at(self, time: float) -> tuple[Event, ...]:
        """What begins at that time."""
        return tuple(event for event in self if event.at == time)

    def running(self, time: float) -> tuple[Event, ...]:
        """What has begun by then and is not over."""
        return tuple(event for event in self if event.at <= time < event.until)

    def held(self, time: float) -> Holdings:
        """What everybody holds after all that is over by `time`: {who: {part: Held}}.

        Messages of one time travel at once: each carries what its sender held before.
        """
        held: dict[Who, dict[Hashable, Held]] = {who: {} for who in self.who}
        for over, events in self._changes:
            if over > time:
                break
            _apply(held, events)
        return held

    def sent(
        self,
        who: Who | None = None,
        until: float = float("inf"),
        axes: Mapping[str, str] | None = None,
    ) -> dict[str, Total]:
        """Calls and their bytes by operation, of one or of all, begun by `until`.

        In the order of first calls: what a log of the wire counts. `axes` names the axis of each
        label: it then stands before the operation, as in "tp all-reduce".
        """
        totals: dict[str, Total] = {}
        for event in self:
            if event.at <= until and who in (None, event.who) and (name := event.sends):
                name = f"{axes[event.label]} {name}" if axes else name
                calls, size = totals.get(name, (0, 0))
                totals[name] = Total(calls + 1, size + event.bytes)
        return totals

    def messages(self, who: Who) -> tuple[tuple[str, Who | None, int], ...]:
        """(operation, to whom, bytes) of all that `who` sends, in order: a trace without a clock.

        What was told and what was recorded are equal in this.
        """
        return tuple((e.sends, e.to, e.bytes) for e in self if e.who == who and e.sends)

    def lanes(self, row: Callable[[Event], str] | None = None) -> dict[str, tuple[Event, ...]]:
        """What takes time, by row: by default a row for each `who`."""
        rows: dict[str, list[Event]] = {}
        for event in self:
            if event.until > event.at:
                name = row(event) if row else str(event.who)
                rows.setdefault(name, []).append(event)
        return {name: tuple(events) for name, events in rows.items()}

    def levels(self, who: Who) -> tuple[tuple[float, int], ...]:
        """(time, bytes that `who` holds from then on), for each time at which that changes."""
        found: list[tuple[float, int]] = []
        for time, size in dict(self._sizes(who)).items():
            if not found or found[-1][1] != size:
                found.append((time, size))
        return tuple(found)

    def peak(self, who: Who) -> int:
        """The most bytes that `who` holds at one time, in the order in which events are told.

        Within one time a part that is freed before another is taken makes room for it.
        """
        return max((size for _, size in self._sizes(who)), default=0)

    def _sizes(self, who: Who) -> Iterator[tuple[float, int]]:
        """(time, bytes that `who` holds) after each event that changes that."""
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
        """What changes holdings, by the time at which it is over."""
        changing = [event for event in self if event.what in (TAKE, FREE, ADD, COPY)]
        in_order = sorted(changing, key=lambda event: event.until)
        return tuple(
            (time, tuple(together)) for time, together in groupby(in_order, lambda e: e.until)
        )


def _apply(held: dict[Who, dict[Hashable, Held]], events: Iterable[Event]) -> None:
    before = {(e.who, e.part): held[e.who].get(e.part) for e in events if e.to is not None}
    for event in events:
        own = held[event.who]
        if event.what == FREE:
            own.pop(event.part, None)
        elif event.to is None:
            own[event.part] = Held((event.who,), event.bytes, event.label)
        else:
            sent, had = before[event.who, event.part], held[event.to].get(event.part)
            of = sent.of if sent else (event.who,)
            if event.what == ADD and had:
                of = tuple(sorted(of + had.of))
            held[event.to][event.part] = Held(of, event.bytes, event.label)
