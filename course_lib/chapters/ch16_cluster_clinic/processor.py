"""A utilization meter like that of GPUs, and the processor time of bytes sent over TCP."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course_lib.validation import whole

_LOOK_S = 0.005


class Meter:
    """Measures for how long the thread that created it ran while it was watched."""

    def __init__(self) -> None:
        task = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        self._stat = task if task.exists() else None
        self._last_s = self._start_s = time.perf_counter()
        self._began_s = time.process_time()
        self._ran_s = 0.0

    @property
    def percent(self) -> float:
        """Running time as a percentage of the time watched."""
        return 100 * self._ran_s / (self._last_s - self._start_s)

    def look(self) -> None:
        """Sample whether the thread runs now, and count the time since the last sample so."""
        now_s = time.perf_counter()
        if self._stat is None:  # only Linux has this file
            self._ran_s = time.process_time() - self._began_s
        elif self._stat.read_text().rpartition(")")[2].split()[0] == "R":
            self._ran_s += now_s - self._last_s
        self._last_s = now_s


@contextmanager
def watched() -> Iterator[Meter]:
    """A meter that samples 200 times a second whether this thread runs.

    A thread that waits for a processor counts as running, so other programs do
    not change the result. Outside Linux it is processor time, and they do.
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


_PIECE_BYTES = 2**20


def processor_s_per_byte(size_bytes: int = 2**28) -> float:
    """Processor seconds, of both ends together, per byte sent over TCP loopback.

    It counts user and kernel time, not wall-clock time, so other programs affect
    it little. A real connection costs more: a network card and its interrupts
    are not included. Raises ValueError for less than 1 MiB, OSError without a
    loopback interface.
    """
    whole("size_bytes", size_bytes, least=_PIECE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(), size_bytes))
        start_s, buffer, received = time.process_time(), bytearray(_PIECE_BYTES), 0
        sender.start()
        receiver, _ = server.accept()
        with receiver:
            while count := receiver.recv_into(buffer):
                received += count
        sender.join()
    return (time.process_time() - start_s) / received


def _send(address: tuple[str, int], size_bytes: int) -> None:
    piece = bytearray(_PIECE_BYTES)
    with socket.create_connection(address) as out:
        for _ in range(size_bytes // _PIECE_BYTES):
            out.sendall(piece)
