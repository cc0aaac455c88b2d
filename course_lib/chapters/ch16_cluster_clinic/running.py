"""A meter as GPUs have it: for how much of the time something ran."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_S = 0.005


class Meter:
    """How long the thread that made it ran, and how long it was watched."""

    def __init__(self) -> None:
        task = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._stat = task if task.exists() else None
        self._last_s = self._start_s = time.perf_counter()
        self._began_s = time.process_time()
        self._ran_s = 0.0

    @property
    def percent(self) -> float:
        """Of the time in which it was watched."""
        return 100 * self._ran_s / (self._last_s - self._start_s)

    def look(self) -> None:
        """See whether it runs now; so it has since the last look."""
        now_s = time.perf_counter()
        if self._stat is None:  # no such file but on Linux
            self._ran_s = time.process_time() - self._began_s
        elif self._stat.read_text().rpartition(")")[2].split()[0] == "R":
            self._ran_s += now_s - self._last_s
        self._last_s = now_s


@contextmanager
def watched() -> Iterator[Meter]:
    """A meter that looks 200 times a second whether this thread runs.

    Who waits for a processor counts as running, so that other programs do not
    change the result. Beyond Linux it is the time on a processor, and they do.
    """
    meter, over = Meter(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            meter.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield meter
    finally:
        over.set()
        watcher.join()
        meter.look()
