"""Stop, pressed during a launch: noted at once, obeyed where nothing can be left half done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(KeyboardInterrupt):
    """A launch was stopped by an interrupt; nothing of it is left."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: where the launcher waited tells the reader nothing.
        return [str(self)]


class Stop:
    """Whether Stop was pressed."""

    pressed = False

    def obey(self, ended: int = 0) -> None:
        """Raise Stopped if it was; `ended` ranks have been ended, or will be by the caller."""
        if self.pressed:
            ranks = f"{ended} rank{'s' * (ended != 1)}"
            raise Stopped(f"Stopped; {ranks} ended" if ended else "Stopped before any rank started")


@contextmanager
def held() -> Iterator[Stop]:
    """Inside, an interrupt does no more than press the Stop that this yields.

    Where Python raises no KeyboardInterrupt (other threads, SIGINT ignored), nothing changes.
    """
    stop = Stop()
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if not callable(before):  # also None, SIG_IGN and SIG_DFL
        yield stop
        return

    def press(*_: object) -> None:
        stop.pressed = True

    signal.signal(signal.SIGINT, press)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
