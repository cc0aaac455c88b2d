"""Shows what a rank prints, while it prints it."""

from pathlib import Path

MAX_BYTES = 64 * 2**20


class Output:
    """Follows one rank's log and prints its complete lines, labelled `[rank 0]`."""

    def __init__(self, log: Path, rank: int, stream: bool) -> None:
        self._log = log
        self._label = f"[rank {rank}] "
        self._stream = stream
        self._position_bytes = 0
        self._partial = b""

    @property
    def too_long(self) -> bool:
        return self._position_bytes > MAX_BYTES

    def show_new_lines(self) -> None:
        """Print the lines completed since the last call."""
        *lines, self._partial = (self._partial + self._read_new()).split(b"\n")
        self._print(lines)

    def show_rest(self) -> None:
        """Print all that is left, including a last line without its end."""
        self.show_new_lines()
        if self._partial:
            self._print([self._partial])
            self._partial = b""

    def last_lines(self, count: int = 20) -> str:
        """The end of the log, for a rank that died without a word to its parent."""
        self._position_bytes = max(0, self._position_bytes - 16_384)
        return "\n".join(_text(line) for line in self._read_new().splitlines()[-count:])

    def _read_new(self) -> bytes:
        try:
            with open(self._log, "rb") as file:
                file.seek(self._position_bytes)
                new = file.read()
        except FileNotFoundError:  # the rank has not started yet
            return b""
        self._position_bytes += len(new)
        return new

    def _print(self, lines: list[bytes]) -> None:
        if self._stream and lines:
            text = "".join(f"{self._label}{_text(line)}\n" for line in lines)
            print(text, end="", flush=True)


def _text(line: bytes) -> str:
    """One line as a terminal shows it: of a progress bar, its last state."""
    return line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
