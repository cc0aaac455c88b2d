"""FSDP's two lanes, predicted and measured: layers that sleep, and real messages between them.

Each layer sleeps instead of computing, so that few cores disturb nobody; its weights are gathered
and its gradients reduced for real, on a link that may be slow: there a message sleeps as well. Both
messages are timed alone, and theory predicts the step.
Of messages and steps the quickest counts, since other programs only ever make them slower.
Run it with `course demo prefetch --ranks 2`, or under torchrun.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from course_lib import launch
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.demos.shared.ranks import at_least_two
from course_lib.demos.shared.result import Result
from course_lib.scratch.flat_parameter import Reduction
from course_lib.scratch.fsdp import FSDP, FSDPUnit
from course_lib.scratch.wire import Work
from course_lib.theory.memory.unit_life import COMPUTES, UnitCosts, unit_life
from course_lib.trace import COLLECTIVES, Event

_TRIES, _STEPS = 9, 3  # repetitions of a message by itself, and of a whole step


@dataclass(frozen=True)
class Options(DemoOptions):
    """The options of the demo."""

    layers: int = option(4, "layers beside the root, all equally large", least=1, most=20)
    numbers: int = option(800_000, "parameters of each unit", least=1, most=10**8)
    forward_ms: float = option(
        15.0, "sleep of a forward pass; a backward one is twice as long", above=0, most=1000
    )
    message_ms: float = option(
        0.0, "a slow link: least time of a gather, and of a reduction", least=0, most=1000
    )


@dataclass(frozen=True)
class Lanes:
    """One step of rank 0; times are in seconds from its first gather."""

    prefetch: bool
    predicted: list[Event]
    measured: list[Event]

    @property
    def predicted_s(self) -> float:
        """Predicted end of the last task."""
        return max(task.until for task in self.predicted)

    @property
    def measured_s(self) -> float:
        """Measured end of the last task."""
        return max(task.until for task in self.measured)

    @property
    def waited_s(self) -> float:
        """Seconds of the measured step in which no layer slept: communication that nothing hid."""
        naps = (task.until - task.at for task in self.measured if task.what in COMPUTES)
        return self.measured_s - sum(naps)

    @property
    def replayed_s(self) -> float:
        """Predicted seconds of a step whose messages and naps last as long as in this one."""
        return unit_life(_measured_costs(self.measured), prefetch=int(self.prefetch)).total_s

    def line(self) -> str:
        """The report's line with all three times."""
        return (
            f"prefetch {'on' if self.prefetch else 'off':<4} "
            f"predicted {1000 * self.predicted_s:.0f} ms, measured {1000 * self.measured_s:.0f} "
            f"ms, with the step's own messages predicted {1000 * self.replayed_s:.0f} ms"
        )


def main(options: Options) -> Result:
    """Time the messages, then a step without and one with prefetch; every rank returns its own."""
    rank = launch.init()
    at_least_two(rank)
    forward_s = options.forward_ms / 1000
    link = Link(options.message_ms / 1000)
    gather_s, reduce_s = _time_messages(options, link, rank.device)
    size = 4 * options.numbers
    layer = UnitCosts(forward_s, 2 * forward_s, gather_s, reduce_s, size, size)
    root = UnitCosts(0.0, 0.0, gather_s, reduce_s, size, size)
    lanes = []
    for prefetch in (False, True):
        predicted = unit_life([root, *[layer] * options.layers], prefetch=int(prefetch))
        measured = _fastest(options, link, prefetch, rank.device)
        lanes.append(Lanes(prefetch, list(predicted.tasks), measured))
    return Result(
        f"alone, {size / 1e6:.1f} MB take {1000 * gather_s:.1f} ms to gather and "
        f"{1000 * reduce_s:.1f} ms to reduce on {rank.world} ranks",
        *(one.line() for one in lanes),
        ranks=rank.world,
        lanes=lanes,
    )


class Nap(Function):
    """Sleep in place of a layer's computation; the weights get a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: "Sleeper") -> Tensor:
        ctx.layer, ctx.size = layer, weight.numel()
        layer.sleep("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.layer.sleep("backward")
        return gradient, gradient.new_zeros(1).expand(ctx.size), None


class Sleeper(nn.Module):
    """A layer of `numbers` weights that sleeps; the root then runs its `blocks`."""

    note: Callable[[str, float], None]

    def __init__(self, numbers: int, seconds: float, blocks: Sequence["Sleeper"] = ()) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.zeros(numbers)), seconds
        self.blocks = nn.ModuleList(blocks)

    def sleep(self, what: str) -> None:
        """Sleep for `seconds`, twice that backward, and record the nap unless it takes no time."""
        start = time.monotonic()
        if self.seconds:
            time.sleep(self.seconds * (2 if what == "backward" else 1))
            self.note(what, start)

    def forward(self, x: Tensor) -> Tensor:
        """Return x unchanged after the naps of this layer and of its blocks."""
        x = Nap.apply(x, self.weight, self)
        for block in self.blocks:
            x = block(x)
        return x


class Delivery(NamedTuple):
    """A message on a link, which replaces a unit's `Work`."""

    wait: Callable[[], object]


class Link:
    """Delivers one message at a time, each in `least_s` or longer, in a separate thread."""

    def __init__(self, least_s: float) -> None:
        self.thread, self.least_s = ThreadPoolExecutor(1), least_s

    def carry(self, work: Work, note: Callable[[], None] = lambda: None) -> Delivery:
        """Wait for `work` in the link's thread, then call `note`; returns at once."""

        def arrive() -> None:
            start = time.monotonic()
            work.wait()
            time.sleep(max(0.0, start + self.least_s - time.monotonic()))
            note()

        return Delivery(self.thread.submit(arrive).result)


class Timed(FSDPUnit):
    """A unit that records when its messages start and end."""

    link: Link
    note: Callable[[str, float], None]

    def start_gather(self) -> None:
        """Gather the weights over the link."""
        before, start = self.gathering, time.monotonic()
        super().start_gather()
        if self.gathering and self.gathering is not before:
            note = partial(self.note, "all-gather", start)
            self.gathering = self.link.carry(self.gathering, note)

    def start_reduction(self) -> None:
        """Reduce the gradients over the link."""
        start = time.monotonic()
        super().start_reduction()
        assert self.reduction is not None
        note = partial(self.note, "reduce-scatter", start)
        self.reduction.work = self.link.carry(self.reduction.work, note)


class TimedFSDP(FSDP):
    """mini-FSDP of timed units."""

    unit = Timed


def _fastest(options: Options, link: Link, prefetch: bool, device: torch.device) -> list[Event]:
    """The fastest of several steps of a model that sleeps, after one warm-up step."""
    forward_s = options.forward_ms / 1000
    layers = [Sleeper(options.numbers, forward_s) for _ in range(options.layers)]
    model = Sleeper(options.numbers, 0.0, layers)
    fsdp = TimedFSDP(model, layers, device=device, prefetch=prefetch)
    events: list[Event] = []

    def note(index: int, what: str, start: float) -> None:
        events.append(Event(start, 0, what, index, end=time.monotonic(), label=str(index)))

    for index, (unit, module) in enumerate(zip(fsdp.units, [model, *layers], strict=True)):
        unit.link, unit.note = link, partial(note, index)
        module.note = unit.note

    def step() -> list[Event]:
        events.clear()
        dist.barrier()
        model(torch.zeros(1)).sum().backward()  # waits for all messages
        return _serialized(events)

    step()
    return min((step() for _ in range(_STEPS)), key=lambda tasks: tasks[-1].until)


def _serialized(events: Sequence[Event]) -> list[Event]:
    """Events as theory has them: a message starts once requested and the previous one is over."""
    by_request = sorted(events, key=lambda task: task.at)
    zero, link_free = by_request[0].at, 0.0
    tasks = []
    for task in by_request:
        start = task.at
        if task.what in COLLECTIVES:
            start = min(max(start, link_free), task.until)
            link_free = task.until
        tasks.append(task._replace(at=start - zero, end=task.until - zero))
    return tasks


def _measured_costs(tasks: Sequence[Event]) -> list[UnitCosts]:
    """Measured seconds of each unit's passes and messages in a step; its two gathers averaged."""

    def seconds(what: str, unit: int) -> float:
        durations = [it.until - it.at for it in tasks if (it.what, it.part) == (what, unit)]
        return fmean(durations) if durations else 0.0  # a nap of no time

    costs = []
    for unit in range(1 + max(int(task.label) for task in tasks)):
        passes = seconds("forward", unit), seconds("backward", unit)
        messages = seconds("all-gather", unit), seconds("reduce-scatter", unit)
        costs.append(UnitCosts(*passes, *messages, weights_bytes=0, gradients_bytes=0))
    return costs


def _time_messages(options: Options, link: Link, device: torch.device) -> tuple[float, float]:
    """Seconds of the fastest gather and the fastest reduction while nothing else runs."""
    unit = FSDPUnit({"weight": nn.Parameter(torch.zeros(options.numbers))}, device)
    vector = torch.zeros(unit.flat.size, device=device)

    def timed(start: Callable[[], Work]) -> float:
        times = []
        for _ in range(_TRIES):
            dist.barrier()
            before = time.monotonic()
            link.carry(start()).wait()
            times.append(time.monotonic() - before)
        return min(times)

    return (
        timed(lambda: unit.flat.start_gather(vector)),
        timed(lambda: Reduction(unit.flat, vector).work),
    )
