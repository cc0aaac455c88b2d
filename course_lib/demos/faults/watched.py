"""The faults in a program that logs each update: what the hunt runs on every rank."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.demos.faults import kinds
from course_lib.demos.faults.kinds import KINDS, Update, healthy

_BROKEN_FROM = 2
# Faults injected once, in the first faulty update; otherwise the rank runs as the others.
_ONCE = {"link": kinds.paced, "weights": kinds.reseeded}


def main(kind: str, broken: int, steps: int = 4) -> None:
    """Train and print a line per update; rank `broken` has a fault of that kind."""
    rank = launch.init()
    model = kinds.model_of(seed=0).to(rank.device)
    for step in range(1, steps + 1):
        ones = torch.ones(4, device=rank.device)
        first = step == _BROKEN_FROM
        update = Update(rank.rank, rank.world, ones, model=model, first=first)
        faulty = step >= _BROKEN_FROM and rank.rank == broken
        _say(step, update, _work(kind, update, step, faulty))


def _work(kind: str, update: Update, step: int, faulty: bool) -> Callable[[Update], object]:
    """The function that this rank runs in this update."""
    if kind in _ONCE:
        if faulty and update.first:
            _ONCE[kind](update)
        return healthy
    if faulty:
        return KINDS[kind]
    if kind == "interface" and step >= _BROKEN_FROM:
        return kinds.grouped
    return healthy


def _say(step: int, update: Update, work: Callable[[Update], object]) -> None:
    """Run the update and print its line."""
    start_s = time.perf_counter()
    with _timed_collectives() as spent_s:
        work(update)
    seconds = time.perf_counter() - start_s
    loss, messages = kinds.trained(update), kinds.exchanged(update)
    print(
        f"update {step}: {1e3 * seconds:.0f} ms, {1e3 * sum(spent_s):.0f} of them in collectives;"
        f" loss {loss:.4f}; {kinds.in_words(messages)}"
    )


@contextmanager
def _timed_collectives() -> Iterator[list[float]]:
    """Yield a list that collects the seconds of each collective of this rank."""
    spent_s: list[float] = []

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def inside(*args: Any, **options: Any) -> Any:
            start_s = time.perf_counter()
            result = call(*args, **options)
            spent_s.append(time.perf_counter() - start_s)
            return result

        return inside

    names = ("all_reduce", "all_gather", "broadcast")
    calls: dict[str, Any] = {name: timed(getattr(dist, name)) for name in names}
    with mock.patch.multiple(dist, **calls):
        yield spent_s
