"""Stop at any moment of a launch: the next launch works, and nothing is left."""

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from leftovers import BUSY_S, folders_in, needs_signals, our_ranks

from course_lib import launch
from course_lib.launch import runner
from course_lib.launch.errors import Stop, uninterrupted

pytestmark = needs_signals
IN_LAUNCH = str(Path(runner.__file__).parent)


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """SIGINT interrupts this process, also where it was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # an interrupt inside a callback of the garbage collector gets lost
    yield
    sys.setprofile(None)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGINT, before)


def press_in(function: str, call: int = 1) -> None:
    """Ctrl-C as that function of the launcher is called, for the given time."""
    left = call

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        code = frame.f_code
        if event == "call" and code.co_name == function and code.co_filename.startswith(IN_LAUNCH):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGINT)

    sys.setprofile(look)


STOPPED = "Stopped; 2 ranks ended"


@pytest.mark.parametrize(
    ("function", "call", "outcome"),
    [
        ("check_memory", 1, ""),  # the launch has not begun: an interrupt as any other
        ("wait_until_warm", 1, STOPPED),
        ("_folder", 1, STOPPED),
        ("_pack_call", 1, STOPPED),
        ("supervisor_for", 1, STOPPED),
        ("_answer", 1, STOPPED),
        ("_watch", 1, STOPPED),
        ("update", 1, STOPPED),
        ("update", 9, STOPPED),  # of the fifth look at two ranks
        ("end", 1, STOPPED),
        ("_results", 1, STOPPED),
        ("_result", 2, STOPPED),
        ("done", 1, None),  # it was over: the results are there
    ],
)
def test_a_launch_is_interrupted_at_any_moment(
    function: str, call: int, outcome: str | None
) -> None:
    results, said = None, None
    # Where it is not obeyed at once, the time is up instead.
    sleep_s = 0 if function in ("end", "_results", "_result", "done") else 600
    press_in(function, call)
    try:
        results = launch.run(time.sleep, sleep_s, stream=False, timeout_s=BUSY_S)
    except KeyboardInterrupt as stopped:
        said = str(stopped)
    finally:
        sys.setprofile(None)
    assert said == outcome and (results == [None, None]) == (outcome is None)
    assert our_ranks() == [] == folders_in(Path(tempfile.gettempdir()))
    assert launch.run(abs, -3, stream=False) == [3, 3]


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
            launch.run(time.sleep, 600, ranks=4, timeout_s=BUSY_S)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert our_ranks() == []


def test_held_gives_back_what_was_there() -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGINT, mine)
    with uninterrupted() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.pressed
    assert signal.getsignal(signal.SIGINT) is mine
    with pytest.raises(launch.Stopped, match=r"^Stopped; 1 rank ended$"):
        stop.obey(1)
    Stop().obey()  # nobody pressed it


def test_where_no_interrupt_comes_nothing_changes() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    results: list[object] = []
    other = threading.Thread(target=lambda: results.extend(launch.run(abs, -1, stream=False)))
    other.start()
    other.join()
    assert results == [1, 1]
