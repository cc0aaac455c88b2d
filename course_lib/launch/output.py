"""The output of a launch: the lines that its ranks print, and a progress line.

The progress line appears after 1 s and is rewritten in place in a terminal or a notebook. At the
end it says how long the launch took; after an error it is erased. Elsewhere (a file, a pipe) it is
printed again after 2 s, 4 s, 8 s and so on, on stderr.
"""

import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

from course_lib.notebook import Slot, in_notebook

MAX_BYTES = 16 * 2**20
_CHUNK_BYTES = 4 * 2**20


class Output:
    """Follows one rank's log file and prints its complete lines, labelled `[rank 0]`."""

    def __init__(
        self, log: Path, rank: int, stream: bool, make_room: Callable[[], None] = lambda: None
    ) -> None:
        self._log = log
        self._make_room = make_room  # called before anything is printed
        self._label = f"[rank {rank}] "
        self._stream = stream
        self._position_bytes = 0
        self._partial = b""

    @property
    def too_long(self) -> bool:
        return self._log.exists() and self._log.stat().st_size > MAX_BYTES

    def show_new_lines(self) -> None:
        """Print the lines completed since the last call, at most 4 MiB of them."""
        if self._stream:
            self._show(self._read_new())

    def show_rest(self) -> None:
        """Print the rest of the log, up to MAX_BYTES, including an unfinished last line."""
        while self._stream and self._position_bytes < MAX_BYTES and (new := self._read_new()):
            self._show(new)
        if self._partial:
            self._show(b"\n")
        if self._stream and self.too_long:
            self._show(f"(the rest is not shown: only {MAX_BYTES >> 20} MiB are)\n".encode())

    def last_lines(self, count: int = 20) -> str:
        """The last `count` lines of the log, for a rank that died without a report."""
        if not self._log.exists():
            return ""
        self._position_bytes = max(0, self._log.stat().st_size - 16_384)
        return "\n".join(_text(line) for line in self._read_new().splitlines()[-count:])

    def _read_new(self) -> bytes:
        if not self._log.exists():  # the rank has not started yet
            return b""
        with open(self._log, "rb") as file:
            file.seek(self._position_bytes)
            new = file.read(_CHUNK_BYTES)
        self._position_bytes += len(new)
        return new

    def _show(self, new: bytes) -> None:
        *lines, self._partial = (self._partial + new).split(b"\n")
        if lines:
            text = "".join(f"{self._label}{_text(line)}\n" for line in lines)
            self._make_room()
            print(text, end="", flush=True)


def _text(line: bytes) -> str:
    """One line as a terminal shows it: only what follows the last carriage return."""
    return line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]


FIRST_S = 1.0
_REWRITE_S = 0.2
_LOOK = "color: var(--jp-content-font-color2, #616161); font-variant-numeric: tabular-nums"

# A rank's progress, (step, steps) in updates: (0, 0) when it is ready, None before.
Steps = tuple[int, int] | None


def progress_text(states: list[Steps], seconds: float, limit_s: float) -> str:
    """One line: "2 of 2 ranks ready, step 3 of 10, 4 s of at most 120 s"."""
    parts = [f"{sum(state is not None for state in states)} of {len(states)} ranks ready"]
    if all(state and state[1] for state in states):
        slowest = min(state for state in states if state)  # the others wait for it
        parts.append(f"step {slowest[0]} of {slowest[1]}")
    return ", ".join([*parts, f"{seconds:.0f} s of at most {limit_s:g} s"])


class ProgressLine:
    """The progress line of a launch; unless `chatty`, shown only where it can be erased again."""

    def __init__(self, limit_s: float, chatty: bool) -> None:
        self._limit_s = limit_s
        self._start_s = time.monotonic()
        self._next_s = FIRST_S
        self._slot = Slot() if in_notebook() else None
        self._shown = ""  # the text on the screen now
        self._was_shown = False
        self._in_place = self._slot is not None or sys.stderr.isatty()
        self._show = chatty or self._in_place

    @property
    def due(self) -> bool:
        """Whether it is time for `update` to show something."""
        return self._show and self._seconds >= self._next_s

    def warming_up(self) -> None:
        """Show that Python and torch are still starting, if it is time."""
        if self._in_place and self.due:
            self._rewrite(f"starting Python and torch, {self._seconds:.0f} s")

    def begin(self) -> None:
        """Restart the clock: the ranks start now."""
        self._start_s = time.monotonic()
        self._next_s = 0.0 if self._was_shown else FIRST_S

    def update(self, states: list[Steps]) -> None:
        """Show the progress of the ranks, if it is time."""
        if not self.due:
            return
        text = progress_text(states, self._seconds, self._limit_s)
        if self._in_place:
            self._rewrite(text)
        else:
            print(text, file=sys.stderr, flush=True)
            self._next_s *= 2

    def make_room(self) -> None:
        """Erase the line in a terminal before other output; `update` shows it again below."""
        if self._slot is None:
            self.clear()

    def clear(self) -> None:
        """Erase the line."""
        if self._shown:
            self._put("")

    def done(self, ranks: int) -> None:
        """Show how long the launch took, if the line was ever shown."""
        if self._was_shown:
            self._put(f"{ranks} rank{'s' * (ranks != 1)}, {self._seconds:.1f} s")
            if self._slot is None:
                print(file=sys.stderr, flush=True)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start_s

    def _rewrite(self, text: str) -> None:
        self._put(text)
        self._next_s = self._seconds + _REWRITE_S

    def _put(self, text: str) -> None:
        if self._slot is not None:
            self._slot.show(f'<span style="{_LOOK}">{escape(text)}</span>' * bool(text), text)
        else:
            back = "" if text else "\r"
            padded = text.ljust(len(self._shown))
            print(f"\r{padded}{back}", end="", file=sys.stderr, flush=True)
        self._shown = text
        self._was_shown = True
