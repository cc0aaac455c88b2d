"""What a processor pays for bytes that go through the kernel's TCP."""

import socket
import threading
import time

from course_lib.validation import whole

_PIECE_BYTES = 2**20


def processor_s_per_byte(size_bytes: int = 2**28) -> float:
    """Processor seconds of both ends for each byte sent over TCP.

    Within this machine, and in the program as in the kernel. It is time on a
    processor, not on the clock, so other programs slow it little. No network
    card takes part, and no interrupts of one: a real connection costs more.
    Raises ValueError for less than 1 MiB, OSError without a loopback.
    """
    whole("size_bytes", size_bytes, least=_PIECE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(), size_bytes))
        start_s, into, got = time.process_time(), bytearray(_PIECE_BYTES), 0
        sender.start()
        receiver, _ = server.accept()
        with receiver:
            while count := receiver.recv_into(into):
                got += count
        sender.join()
    return (time.process_time() - start_s) / got


def _send(address: tuple[str, int], size_bytes: int) -> None:
    piece = bytearray(_PIECE_BYTES)
    with socket.create_connection(address) as out:
        for _ in range(size_bytes // _PIECE_BYTES):
            out.sendall(piece)
