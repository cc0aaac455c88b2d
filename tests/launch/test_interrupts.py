"""Stop at any moment of a launch: the next launch works, and nothing is left."""

import collections
import gc
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from leftovers import folders_in, needs_signals, our_ranks

from course_lib import launch
from course_lib.launch import runner
from course_lib.launch.errors import Stop, held

pytestmark = needs_signals


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """SIGALRM interrupts this process, also where it was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    gc.disable()  # an interrupt inside a callback of the garbage collector gets lost
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGINT, before)


def interrupted(draw: random.Random) -> str:
    """Launch, and interrupt it at some moment: what came of it."""
    outcome, ranks = "finished", draw.randint(2, 8)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, 0.06 + 0.03 * ranks))
            launch.run(time.sleep, 0.1, ranks=ranks, stream=False)
        except launch.Stopped as stopped:
            outcome = str(stopped) if "before" in str(stopped) else "stopped"
            time.sleep(0.0)
        time.sleep(0.4 if outcome == "finished" else 0.0)  # until the interrupt has come
    except KeyboardInterrupt:
        outcome = f"outside, {outcome}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome


def many(count: int, seed: int) -> collections.Counter[str]:
    """Outcomes of `count` interrupted launches; each is followed by one that has to work."""
    draw, outcomes = random.Random(seed), collections.Counter[str]()
    for _ in range(count):
        outcomes[interrupted(draw)] += 1
        outcomes["processes left"] += len(our_ranks())
        outcomes["folders left"] += len(folders_in(Path(tempfile.gettempdir())))
        try:
            outcomes["failed afterwards"] += launch.run(abs, -3, ranks=2, stream=False) != [3, 3]
        except (launch.RankFailed, OSError) as error:
            outcomes[f"failed afterwards: {error}"] += 1
    return +outcomes


def test_after_twenty_interrupts_everything_works() -> None:
    outcomes = many(20, seed=3)
    assert set(outcomes) <= {"stopped", "Stopped before any rank started", "finished",
                             "outside, finished"}, outcomes  # fmt: skip
    assert outcomes["stopped"] >= 5, outcomes


def press_inside_of_a_launch(_: int, frame: FrameType | None) -> None:
    """Ctrl-C, unless the launch is over: then it would stop the tests."""
    while frame is not None and frame.f_code.co_filename != runner.__file__:
        frame = frame.f_back
    if frame is not None:
        os.kill(os.getpid(), signal.SIGINT)


def test_many_interrupts_during_one_launch() -> None:
    signal.signal(signal.SIGALRM, press_inside_of_a_launch)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.002)  # again and again, also while ranks end
    with pytest.raises(KeyboardInterrupt):  # Stopped, or one press that came as it was raised
        try:
            launch.run(time.sleep, 60, ranks=4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert our_ranks() == []


def test_held_gives_back_what_was_there() -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGINT, mine)
    with held() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.pressed
    assert signal.getsignal(signal.SIGINT) is mine
    with pytest.raises(launch.Stopped, match=r"^Stopped; 1 rank ended$"):
        stop.obey(1)
    Stop().obey()  # nobody pressed it


def test_where_no_interrupt_comes_nothing_changes() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    results: list[object] = []
    other = threading.Thread(target=lambda: results.extend(launch.run(abs, -1, stream=False)))
    other.start()
    other.join()
    assert results == [1, 1]
