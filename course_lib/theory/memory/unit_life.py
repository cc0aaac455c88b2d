"""One step of fully sharded data parallelism on two lanes: what computes, and what is under way."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.memory.gather_timeline import ROOT
from course_lib.validation import flag, listed, number, whole

COMPUTING, MESSAGES = "computing", "messages"
_MOST_UNITS = 200
_Given = tuple[float, int]  # second, unit


@dataclass(frozen=True)
class UnitCosts:
    """A unit alone: seconds of its two passes and two messages, and its bytes while it is whole.

    `waiting_bytes`: of the root's gradients the head's, which wait for the embedding's.
    A gather or a reduction of 0 s is a message all the same. Raises ValueError below 0.
    """

    forward_s: float
    backward_s: float
    gather_s: float
    reduce_s: float
    weights_bytes: int
    gradients_bytes: int
    waiting_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "gather_s", "reduce_s"):
            number(name, getattr(self, name), least=0, most=1e6)
        for name in ("weights_bytes", "gradients_bytes", "waiting_bytes"):
            whole(name, getattr(self, name), least=0)


@dataclass(frozen=True)
class UnitTask:
    """Something that takes time: "forward", "backward", "gather" or "reduce" of a unit."""

    what: str
    unit: int
    asked_s: float  # a message may have to wait for the link
    start_s: float
    end_s: float

    @property
    def lane(self) -> str:
        """Computing, or messages."""
        return COMPUTING if self.what in ("forward", "backward") else MESSAGES


@dataclass(frozen=True)
class UnitMoment:
    """What holds from `at_s` on: tasks that run, each unit's weights and gradient, bytes.

    Weights are "shard", "asked" (there is room for them), "arriving" or "whole"; gradients "none",
    "growing", "waiting", "leaving" or "sent", until somebody has waited for the message.
    """

    at_s: float
    running: tuple[UnitTask, ...]
    freed: tuple[int, ...]  # units that are freed at this moment
    weights: tuple[str, ...]
    gradients: tuple[str, ...]
    weights_bytes: int
    gradients_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Both together: what is there beside the shards."""
        return self.weights_bytes + self.gradients_bytes


@dataclass(frozen=True)
class UnitLife:
    """A step of several units; unit 0 is the root, whole from beginning to end."""

    units: tuple[UnitCosts, ...]
    calls: tuple[
        tuple[str, int], ...
    ]  # (gather, wait, forward, free, backward, reduce, done; unit)
    tasks: tuple[UnitTask, ...]
    frees: tuple[tuple[float, int], ...]  # (second, unit), of weights
    dones: tuple[tuple[float, int], ...]  # the same of gradients

    @property
    def total_s(self) -> float:
        """When the last task has ended."""
        return max(task.end_s for task in self.tasks)

    @property
    def computing_s(self) -> float:
        """Time in which something computes."""
        return sum(task.end_s - task.start_s for task in self.tasks if task.lane == COMPUTING)

    @property
    def waiting_s(self) -> float:
        """Time in which nothing computes: total - computing."""
        return self.total_s - self.computing_s

    @property
    def gathers(self) -> int:
        """All-gathers in the step."""
        return sum(task.what == "gather" for task in self.tasks)

    @property
    def reductions(self) -> int:
        """Reduce-scatters in the step."""
        return sum(task.what == "reduce" for task in self.tasks)

    @property
    def moments(self) -> tuple[UnitMoment, ...]:
        """One for each time at which a task is asked for, starts or ends, or a unit is freed."""
        times = {at for task in self.tasks for at in (task.asked_s, task.start_s, task.end_s)}
        times |= {at_s for at_s, _ in self.frees + self.dones}
        return tuple(self._moment(at_s) for at_s in sorted(times))

    @property
    def peak_bytes(self) -> int:
        """The most whole weights and gradients at one moment, beside the shards."""
        return max(moment.whole_bytes for moment in self.moments)

    def _moment(self, at_s: float) -> UnitMoment:
        numbers = range(len(self.units))
        weights = tuple(self._weights(unit, at_s) for unit in numbers)
        gradients = tuple(self._gradient(unit, at_s) for unit in numbers)
        pairs = list(zip(self.units, weights, gradients, strict=True))
        root = self.units[ROOT]
        absent = 0  # the embedding's gradient comes when all layers have theirs
        if gradients[ROOT] in ("growing", "waiting"):
            absent = root.gradients_bytes - root.waiting_bytes
        return UnitMoment(
            at_s,
            tuple(task for task in self.tasks if task.start_s <= at_s < task.end_s),
            tuple(unit for freed_s, unit in self.frees if freed_s == at_s),
            weights,
            gradients,
            sum(costs.weights_bytes for costs, state, _ in pairs if state != "shard"),
            sum(costs.gradients_bytes for costs, _, state in pairs if state != "none") - absent,
        )

    def _weights(self, unit: int, at_s: float) -> str:
        gathered = [t for t in self.tasks if (t.what, t.unit) == ("gather", unit)]
        asked = [task for task in gathered if task.asked_s <= at_s]
        freed = sum(freed_s <= at_s for freed_s, number_ in self.frees if number_ == unit)
        if len(asked) <= freed:
            return "shard"
        if at_s < asked[-1].start_s:
            return "asked"
        return "arriving" if at_s < asked[-1].end_s else "whole"

    def _gradient(self, unit: int, at_s: float) -> str:
        backward, reduce = (
            next((t for t in self.tasks if (t.what, t.unit) == (what, unit)), None)
            for what in ("backward", "reduce")
        )
        assert backward and reduce
        done_s = next(at for at, number_ in self.dones if number_ == unit)
        if at_s < backward.start_s or at_s >= done_s:
            return "none"
        ends = {
            "growing": backward.end_s,
            "waiting": reduce.start_s,
            "leaving": reduce.end_s,
            "sent": done_s,
        }
        return next(state for state, end_s in ends.items() if at_s < end_s)


@checked
def unit_life(units: Sequence[UnitCosts], *, prefetch: int = 1, reshard: bool = True) -> UnitLife:
    """The root and its layers through one step: `units[0]` is the root, then the layers in order.

    A layer is gathered, or already on its way, before it computes; `prefetch` more are asked for
    then. It is freed after its forward pass (`reshard`), gathered again and freed after its
    backward pass, whose gradients are reduced, one reduction at a time. There is one link: messages
    go one after the other, in the order in which they were asked for.
    Source: Zhao et al. 2023, arXiv:2304.11277, section 3.3.
    Raises ValueError without a root and a layer, and for a prefetch that is negative.
    """
    listed("units", len(units), "leave some out", most=_MOST_UNITS)
    whole("prefetch", prefetch, least=0, most=_MOST_UNITS)
    flag("reshard", reshard)
    if len(units) < 2:
        raise ValueError(f"units has {len(units)} entries: give the root and at least one layer")
    calls = tuple(_calls(len(units) - 1, prefetch, reshard))
    tasks, frees, dones = _run(units, calls)
    return UnitLife(tuple(units), calls, tuple(tasks), tuple(frees), tuple(dones))


def _calls(layers: int, prefetch: int, reshard: bool) -> Iterator[tuple[str, int]]:
    """What the program calls, in its order; "wait" and "done" are waits for messages."""
    here: set[int] = set()  # whole, or on its way
    expected: set[int] = set()  # on its way, and nobody has waited for it

    def ask(numbers: Iterable[int]) -> Iterator[tuple[str, int]]:
        for unit in numbers:
            if 0 <= unit <= layers and unit not in here:
                here.add(unit)
                expected.add(unit)
                yield "gather", unit

    def use(what: str, unit: int, ahead: Iterable[int]) -> Iterator[tuple[str, int]]:
        yield from ask([unit])
        if unit in expected:
            expected.remove(unit)
            yield "wait", unit
        yield from ask(ahead)
        yield what, unit

    for unit in range(layers + 1):
        yield from use("forward", unit, range(unit + 1, unit + 1 + prefetch))
        if reshard and unit != ROOT:
            here.remove(unit)
            yield "free", unit
    yield "backward", ROOT  # it begins at the head
    for unit in range(layers, 0, -1):
        yield from use("backward", unit, range(unit - 1, unit - 1 - prefetch, -1))
        here.remove(unit)
        yield "free", unit
        if unit < layers:
            yield "done", unit + 1
        yield "reduce", unit
    yield from (("free", ROOT), ("done", 1), ("reduce", ROOT), ("done", ROOT))


def _run(
    units: Sequence[UnitCosts], calls: Sequence[tuple[str, int]]
) -> tuple[list[UnitTask], list[_Given], list[_Given]]:
    """When each call is made and what it starts; when weights and gradients are given back."""
    tasks: list[UnitTask] = []
    frees: list[_Given] = []
    dones: list[_Given] = []
    ends: dict[tuple[str, int], float] = {}  # of the latest message of each kind and unit
    now = link_free = 0.0
    for what, unit in calls:
        costs = units[unit]
        if what in ("gather", "reduce"):
            start = max(now, link_free)
            link_free = start + (costs.gather_s if what == "gather" else costs.reduce_s)
            ends[what, unit] = link_free
            tasks.append(UnitTask(what, unit, now, start, link_free))
        elif what in ("wait", "done"):
            now = max(now, ends["gather" if what == "wait" else "reduce", unit])
            if what == "done":
                dones.append((now, unit))
        elif what == "free":
            frees.append((now, unit))
        else:
            end = now + (costs.forward_s if what == "forward" else costs.backward_s)
            tasks.append(UnitTask(what, unit, now, now, end))
            now = end
    return tasks, frees, dones
