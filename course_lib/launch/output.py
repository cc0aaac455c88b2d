"""Shows what a rank prints, while it prints it."""

from collections.abc import Callable
from pathlib import Path

MAX_BYTES = 16 * 2**20
_CHUNK_BYTES = 4 * 2**20


class Output:
    """Follows one rank's log and prints its complete lines, labelled `[rank 0]`."""

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
        """Print what is left, up to the limit, including an unfinished last line."""
        while self._stream and self._position_bytes < MAX_BYTES and (new := self._read_new()):
            self._show(new)
        if self._partial:
            self._show(b"\n")
        if self._stream and self.too_long:
            self._show(f"(the rest is not shown: only {MAX_BYTES >> 20} MiB are)\n".encode())

    def last_lines(self, count: int = 20) -> str:
        """The end of the log, for a rank that died without a report."""
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
    """One line as a terminal shows it: for a progress bar, its last state."""
    return line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
