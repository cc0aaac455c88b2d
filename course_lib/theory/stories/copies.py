"""Traces of data-parallel training: ZeRO, DDP's buckets, a parameter server."""

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, product
from typing import Annotated, NamedTuple

from course_lib.checked import Count, CountOrZero, NotNegative, Positive, check_public
from course_lib.theory.inputs.layout import ZeroStage
from course_lib.theory.inputs.recipe import MIXED_16
from course_lib.theory.network.bucket_timeline import BucketTimeline
from course_lib.trace import ADD, COPY, FREE, TAKE, Event, Trace
from course_lib.validation import whole

MOST_RANKS, _LAYERS = 32, 100


def zero_steps(
    layer_parameters: Count,
    layers: Annotated[int, partial(whole, most=_LAYERS)],
    ranks: Annotated[int, partial(whole, most=MOST_RANKS)],
    stage: ZeroStage,
) -> Trace:
    """One training step under ZeRO: forward, backward and update, with one micro-batch.

    A parameter has 2 bytes of weights, 2 of gradients and 12 of states.
    Parts are (kind, layer, slice): a layer is split into one slice per rank. "gathered" are
    temporary whole weights, in addition to the rank's slice. Each rank sends slices directly to the
    ranks that need them, and `label` names the collective; the sums of an all-reduce come back half
    a step later. Weights with a label are those after the update. This is the simplest form, as in
    `scratch.zero`: nothing is prefetched.
    Raises ValueError if `layer_parameters` is not a multiple of `ranks`: nothing is padded.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7.
    """
    if layer_parameters % ranks:
        raise ValueError(
            f"layer_parameters {layer_parameters} can't be cut into {ranks} equal parts: "
            "take a multiple of ranks"
        )
    each = {"weights": MIXED_16.weight_bytes, "gradients": MIXED_16.gradient_bytes}
    each["states"] = MIXED_16.bytes_per_parameter - sum(each.values())
    slices = {kind: layer_parameters * size // ranks for kind, size in each.items()}
    moments = _Zero(slices, range(layers), range(ranks), stage).moments()
    return Trace(event for at, events in enumerate(moments) for event in _timed(at, events))


def _timed(at: float, events: Sequence[Event]) -> Iterator[Event]:
    """`events`, whose times count from 0, shifted by `at`."""
    return (event._replace(at=event.at + at) for event in events)


class _Zero(NamedTuple):
    """Generates the events of each moment, with times relative to that moment."""

    slices: dict[str, int]
    layers: range
    ranks: range
    stage: int

    def moments(self) -> Iterator[list[Event]]:
        cut = {"weights": self.stage == 3, "states": self.stage > 0}
        yield [
            event
            for (kind, own), layer in product(cut.items(), self.layers)
            for event in self.take(kind, layer, own)
        ]
        for layer in self.layers:
            if self.stage == 3:
                yield self.gather(layer)
            yield [Event(0, rank, "forward", layer) for rank in self.ranks]
            if self.stage == 3:
                yield self.free("gathered", layer)
        for layer in reversed(self.layers):
            if self.stage == 3:
                yield self.gather(layer)
            computing = [Event(0, rank, "backward", layer) for rank in self.ranks]
            yield computing + self.take("gradients", layer)
            if self.stage >= 2:
                yield self.reduce(layer)
        if self.stage < 2:
            yield from map(self.reduce, self.layers)
        yield self.update()
        if self.stage in (1, 2):
            for layer in self.layers:
                yield self.spread("weights", layer)

    def take(self, kind: str, layer: int, own: bool = False, label: str = "") -> list[Event]:
        """Every rank allocates all slices of a layer, or only its `own` one."""
        return [
            Event(0, rank, TAKE, (kind, layer, part), bytes=self.size(kind), label=label)
            for rank in self.ranks
            for part in ([rank] if own else self.ranks)
        ]

    def free(self, kind: str, layer: int, own: bool = True, others: bool = True) -> list[Event]:
        return [
            Event(0, rank, FREE, (kind, layer, part))
            for rank, part in product(self.ranks, self.ranks)
            if (own if part == rank else others)
        ]

    def spread(self, kind: str, layer: int, call: str = "all-gather") -> list[Event]:
        """Every rank sends its slice to all others."""
        return [
            Event(0, rank, COPY, (kind, layer, rank), to, self.size(kind), label=call)
            for rank, to in product(self.ranks, self.ranks)
            if to != rank
        ]

    def gather(self, layer: int) -> list[Event]:
        return self.spread("gathered", layer) + self.take("gathered", layer, own=True)

    def reduce(self, layer: int) -> list[Event]:
        """Gradient reduction: an all-reduce, or a reduce-scatter, which may free whole weights."""
        call = "reduce-scatter" if self.stage else "all-reduce"
        added = [
            one._replace(what=ADD, part=("gradients", layer, one.to))
            for one in self.spread("gradients", layer, call)
        ]
        if not self.stage:  # the sums come back
            return added + list(_timed(0.5, self.spread("gradients", layer, call)))
        freed = self.free("gathered", layer) if self.stage == 3 else []
        return added + self.free("gradients", layer, own=False) + freed

    def update(self) -> list[Event]:
        updated = [Event(0, rank, "update") for rank in self.ranks]
        for layer in self.layers:
            updated += self.free("gradients", layer, others=self.stage == 0)
            updated += self.take("weights", layer, own=self.stage > 0, label="new")
        return updated

    def size(self, kind: str) -> int:
        return self.slices["weights" if kind == "gathered" else kind]


# --- DDP's buckets --------------------------------------------------------------------------------


def bucket_steps(timeline: BucketTimeline) -> Trace:
    """A `BucketTimeline` as a trace of one rank, with events "backward" and "all-reduce".

    The part of "backward" is (bucket, index of the gradient), which is ready at the end; `label` is
    its name. The part of "all-reduce" is the bucket's number. Source: Li et al. 2020, PyTorch
    Distributed, arXiv:2006.15704, section 3.2.
    """
    produced = accumulate(gradient.size_bytes for gradient in timeline.gradients)
    full = list(accumulate(exchange.size_bytes for exchange in timeline.exchanges))
    start_s, events = 0.0, []
    for index, (gradient, size) in enumerate(zip(timeline.gradients, produced, strict=True)):
        part, end_s = (sum(limit < size for limit in full), index), start_s + gradient.backward_s
        events.append(Event(start_s, 0, "backward", part, end=end_s, label=gradient.name))
        start_s = end_s
    for bucket, sent in enumerate(timeline.exchanges):
        size, end_s = sent.size_bytes, sent.end_s
        events.append(Event(sent.start_s, 0, "all-reduce", bucket, bytes=size, end=end_s))
    return Trace(events)


# --- a parameter server ---------------------------------------------------------------------------

PULL, WAIT, PUSH, UPDATE = "pull", "wait", "push", "update"
_MOST_EVENTS = 10_000


class Rows(NamedTuple):
    """`version`: number of updates to the table after the event. `late`: staleness, the number of
    updates between the pull of these rows and the push of their gradient."""

    version: int
    late: int = 0


def served_steps(
    compute_s: Sequence[Positive],
    until_s: NotNegative,
    bound: CountOrZero | None = None,
    together: bool = False,
) -> Trace:
    """Events of a server and its trainers in the first `until_s` seconds; messages take no time.

    A trainer pulls `Rows`, computes, pushes their gradient and immediately requests the next. With
    `together` all gradients of a round are summed into one "update", an event of the last trainer
    to push, and only then are rows served again; otherwise each push is an update. `bound`: maximum
    number of updates by which a trainer may be ahead of the slowest before it must wait; None:
    trainers never wait. Of simultaneous requests the lower trainer number goes first. Raises
    ValueError for more than 10,000 events. Sources: Dean et al. 2012, "Large Scale Distributed Deep
    Networks", section 4.1; Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server", NeurIPS.
    """
    whole("trainers", len(compute_s))
    if bound is not None and together:
        raise ValueError("bound is for trainers that do not go together: leave one of them out")
    if until_s / min(compute_s) * len(compute_s) > _MOST_EVENTS:
        raise ValueError(f"until_s {until_s:g} has too many updates to show: take fewer seconds")
    return Trace(_served(compute_s, until_s, 0 if together else bound, together))


def _served(
    compute_s: Sequence[float], until_s: float, bound: int | None, together: bool
) -> Iterator[Event]:
    trainers, version = range(len(compute_s)), 0
    done = [0 for _ in trainers]  # gradients pushed by each trainer
    pulled: dict[int, int] = {}  # version of the rows of each computing trainer
    waiting: list[int] = []
    requests = [(0.0, trainer) for trainer in trainers]
    while requests and requests[0][0] <= until_s:
        at_s, trainer = heappop(requests)
        if trainer in pulled:
            late = version - pulled.pop(trainer)
            done[trainer] += 1
            version += not together
            yield Event(at_s, trainer, PUSH, Rows(version, late))
            if together and min(done) == max(done):
                version += 1
                yield Event(at_s, trainer, UPDATE, Rows(version))
            heappush(requests, (at_s, trainer))
        else:
            waiting.append(trainer)
            if bound is not None and done[trainer] - min(done) > bound:
                yield Event(at_s, trainer, WAIT, Rows(version))
        for each in list(waiting):
            if bound is None or done[each] - min(done) <= bound:
                waiting.remove(each)
                pulled[each] = version
                yield Event(at_s, each, PULL, Rows(version))
                heappush(requests, (at_s + compute_s[each], each))


check_public(globals())
