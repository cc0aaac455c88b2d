"""How far a launch is: after a second one line, which changes where the output can go back.

In a terminal and in a notebook the line is rewritten in place, and is gone in the end. Elsewhere (a
file, a pipe) it is printed again after 2 s, 4 s, 8 s and so on, on stderr.
"""

import sys
import time
from typing import TextIO

FIRST_S = 1.0
_REWRITE_S = 0.2

# A rank's own word: update `step` of `steps`; 0 of 0 for a rank that is ready.
Steps = tuple[int, int] | None


def progress_text(states: list[Steps], seconds: float, limit_s: float) -> str:
    """One line: "2 of 2 ranks ready, step 3 of 10, 4 s of at most 120 s"."""
    parts = [f"{sum(state is not None for state in states)} of {len(states)} ranks ready"]
    if all(state and state[1] for state in states):
        last = min(state for state in states if state)  # the others wait for it
        parts.append(f"step {last[0]} of {last[1]}")
    return ", ".join([*parts, f"{seconds:.0f} s of at most {limit_s:g} s"])


class ProgressLine:
    """The line of one launch; silent unless `show`."""

    def __init__(self, limit_s: float, show: bool) -> None:
        self._limit_s, self._show = limit_s, show
        self._start_s = time.monotonic()
        self._next_s = FIRST_S
        self._shown = 0  # characters of the line that stands there now
        in_notebook = type(sys.stdout).__module__.startswith("ipykernel")
        self._stream: TextIO = sys.stdout if in_notebook else sys.stderr
        self._in_place = in_notebook or self._stream.isatty()

    @property
    def due(self) -> bool:
        """Whether `update` would show anything."""
        return self._show and time.monotonic() - self._start_s >= self._next_s

    def update(self, states: list[Steps]) -> None:
        """Show how far the ranks are, if it is time."""
        if not self.due:
            return
        seconds = time.monotonic() - self._start_s
        text = progress_text(states, seconds, self._limit_s)
        if self._in_place:
            self._write("\r" + text.ljust(self._shown))
            self._shown, self._next_s = len(text), seconds + _REWRITE_S
        else:
            self._write(text + "\n")
            self._next_s *= 2

    def clear(self) -> None:
        """Make room for other output: the line comes again."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
