"""One step of fully sharded data parallelism as a trace of calls, memory and messages.

With the seconds of `UnitCosts` the trace is timed (`unit_life`); without them it is the order of
allocations and frees (`gather_timeline`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from course_lib.checked import CountOrZero, check_public
from course_lib.trace import FREE, TAKE, Event, Trace
from course_lib.validation import listed, number, whole

ROOT = 0  # the unit of all parameters outside the layers; layers are units 1, 2, …
WEIGHTS, GRADIENTS = "whole weights", "gradients"  # a part of the trace is (one of these, unit)
REDUCED = GRADIENTS, "reduced"  # the copy that is being reduced, one at a time; label: the unit
COMPUTES = ("forward", "backward")
_MESSAGES = {"gather": "all-gather", "reduce": "reduce-scatter"}
_MOST_UNITS = 200
_Seconds = Annotated[float, partial(number, least=0, most=1e6)]


@dataclass(frozen=True)
class UnitCosts:
    """Costs of one FSDP unit: seconds of its passes and messages, and its unsharded bytes.

    `waiting_bytes`: for the root, the head's gradients, which wait for the embedding's. A gather or
    reduction of 0 s still counts as a message.
    """

    forward_s: _Seconds
    backward_s: _Seconds
    gather_s: _Seconds
    reduce_s: _Seconds
    weights_bytes: CountOrZero
    gradients_bytes: CountOrZero
    waiting_bytes: CountOrZero = 0


@dataclass(frozen=True)
class UnitLife:
    """A step of several units; unit 0 is the root, which stays gathered throughout.

    The trace of one rank: "forward" and "backward" of each unit, its "all-gather" (memory is
    allocated when it is issued) and "reduce-scatter", and all unsharded tensors.
    """

    trace: Trace

    @property
    def tasks(self) -> tuple[Event, ...]:
        """Passes and messages, sorted by start time."""
        return tuple(event for event in self.trace if event.what not in (TAKE, FREE))

    @property
    def total_s(self) -> float:
        """Seconds until the last task ends."""
        return self.trace.times[-1]

    @property
    def computing_s(self) -> float:
        """Seconds spent computing."""
        return sum(event.until - event.at for event in self.trace if event.what in COMPUTES)

    @property
    def waiting_s(self) -> float:
        """Seconds without computation: total - computing."""
        return self.total_s - self.computing_s

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of unsharded weights and gradients, in addition to the shards."""
        return max(size for _, size in self.trace.levels(0))


def unit_life(units: Sequence[UnitCosts], *, prefetch: int = 1, reshard: bool = True) -> UnitLife:
    """Simulate a step of FSDP: `units[0]` is the root, followed by the layers in order.

    A layer's gather is issued before it computes, unless it was prefetched, together with those of
    the next `prefetch` layers. The layer is freed after its forward pass (`reshard`), gathered
    again, and freed after its backward pass, whose gradients are reduced, one reduction at a time.
    All messages share one link, in the order in which they were issued.
    Source: Zhao et al. 2023, arXiv:2304.11277, section 3.3.
    Raises ValueError without a root and a layer, and for a prefetch that is negative.
    """
    listed("units", len(units), "leave some out", most=_MOST_UNITS)
    if len(units) < 2:
        raise ValueError(f"units has {len(units)} entries: give the root and at least one layer")
    calls = fsdp_calls(len(units) - 1, prefetch=prefetch, reshard=reshard)
    return UnitLife(Trace(event for together in changes(units, calls) for event in together))


def fsdp_calls(
    layers: Annotated[int, partial(whole, most=_MOST_UNITS)],
    *,
    prefetch: Annotated[int, partial(whole, least=0, most=_MOST_UNITS)] = 1,
    reshard: bool = True,
) -> tuple[tuple[str, int], ...]:
    """(call, unit) for every call of the program in a step, in order.

    "gather", "wait" (for the gather), "forward", "free", "backward", "reduce" and "done" (wait for
    the reduction).
    """
    return tuple(_calls(layers, prefetch, reshard))


def _calls(layers: int, prefetch: int, reshard: bool) -> Iterator[tuple[str, int]]:
    gathered: set[int] = set()  # gathered, or being gathered
    pending: set[int] = set()  # being gathered, not yet waited for

    def gather(numbers: Iterable[int]) -> Iterator[tuple[str, int]]:
        for unit in numbers:
            if 0 <= unit <= layers and unit not in gathered:
                gathered.add(unit)
                pending.add(unit)
                yield "gather", unit

    def use(what: str, unit: int, ahead: Iterable[int]) -> Iterator[tuple[str, int]]:
        yield from gather([unit])
        if unit in pending:
            pending.remove(unit)
            yield "wait", unit
        yield from gather(ahead)
        yield what, unit

    for unit in range(layers + 1):
        yield from use("forward", unit, range(unit + 1, unit + 1 + prefetch))
        if reshard and unit != ROOT:
            gathered.remove(unit)
            yield "free", unit
    yield "backward", ROOT  # it begins at the head
    for unit in range(layers, 0, -1):
        yield from use("backward", unit, range(unit - 1, unit - 1 - prefetch, -1))
        gathered.remove(unit)
        yield "free", unit
        if unit < layers:
            yield "done", unit + 1
        yield "reduce", unit
    yield from (("free", ROOT), ("done", 1), ("reduce", ROOT), ("done", ROOT))


def changes(
    units: Sequence[UnitCosts], calls: Iterable[tuple[str, int]], copy_bytes: Sequence[int] = ()
) -> Iterator[tuple[Event, ...]]:
    """The timed events of each call, grouped by call.

    `copy_bytes`: bytes of each unit's gradients in the reduction precision.
    """
    ends: dict[tuple[str, int], float] = {}  # end of the latest message of each kind and unit
    copies = copy_bytes or [costs.gradients_bytes for costs in units]
    now = link_free = 0.0
    for what, unit in calls:
        costs, label = units[unit], str(unit)
        weights, gradients = (WEIGHTS, unit), (GRADIENTS, unit)
        if what in _MESSAGES:
            gathers = what == "gather"
            start, size = max(now, link_free), costs.weights_bytes if gathers else copies[unit]
            link_free = start + (costs.gather_s if gathers else costs.reduce_s)
            ends[what, unit] = link_free
            yield (
                Event(now, 0, TAKE, weights if gathers else REDUCED, bytes=size, label=label),
                Event(start, 0, _MESSAGES[what], unit, bytes=size, end=link_free, label=label),
            )
            if not gathers:
                yield (Event(now, 0, FREE, gradients),)
        elif what in ("wait", "done"):
            now = max(now, ends["gather" if what == "wait" else "reduce", unit])
            if (what, unit) == ("done", ROOT):  # earlier copies are overwritten by the next one
                yield (Event(now, 0, FREE, REDUCED),)
        elif what == "free":
            yield (Event(now, 0, FREE, weights, label=label),)
        else:
            start, now = now, now + (costs.forward_s if what == "forward" else costs.backward_s)
            event = Event(start, 0, what, unit, end=now, label=label)
            size = costs.gradients_bytes if unit else costs.waiting_bytes
            taken = Event(start, 0, TAKE, gradients, bytes=size)
            yield (taken, event) if what == "backward" else (event,)


# --- YaFSDP's two pairs of buffers ---


def buffer_turns(layers: Annotated[int, partial(whole, least=2, most=_MOST_UNITS)]) -> Trace:
    """Contents of YaFSDP's buffers over a step: each layer's forward, then each layer's backward.

    A step of the trace is a pass of a layer. Layer n uses buffer n mod 2: a part is ("whole
    weights", 0 or 1) or ("gradients", 0 or 1), labelled with the layer. A pass overlaps with the
    "all-gather" of the next layer into the other buffer, unless that holds it already, and in
    backward with the "reduce-scatter" of the previous one. 2·layers - 2 gathers, one at the start.
    Source: github.com/yandex/YaFSDP, version 1, 2024.
    """
    return Trace(_events(layers))


def _events(layers: int) -> Iterator[Event]:
    forward = [("forward", layer, layer + 1) for layer in range(layers)]
    backward = [("backward", layer, layer - 1) for layer in reversed(range(layers))]
    held = [0, -1]  # the layer in each weight buffer
    yield Event(0, 0, TAKE, (WEIGHTS, 0), label="0")
    for turn, (phase, layer, following) in enumerate(forward + backward):
        now, end = turn, turn + 1
        yield Event(now, 0, phase, layer, end=end, label=str(layer))
        if 0 <= following < layers and held[following % 2] != following:
            held[following % 2] = following
            label = str(following)
            yield Event(now, 0, TAKE, (WEIGHTS, following % 2), label=label)
            yield Event(now, 0, "all-gather", following, end=end, label=label)
        if phase == "backward":
            yield Event(now, 0, TAKE, (GRADIENTS, layer % 2), label=str(layer))
            if layer + 1 < layers:
                yield Event(now, 0, "reduce-scatter", layer + 1, end=end, label=str(layer + 1))


check_public(globals())
