"""The kernel's counters of an interface."""

import sys

import pytest

from course_lib.chapters.ch14_parameter_servers import interface
from course_lib.chapters.ch14_parameter_servers.interface import Counted, interface_bytes

# As Linux prints it: eight columns of what came in, eight of what went out.
PRINTED = """Inter-|   Receive                        |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 1000      10    0    0    0     0          0         0     1000      10    0
 wire0:7700       11    1    2    3     4          5         6     8400      12    0
"""


def test_columns_of_the_kernel(tmp_path, monkeypatch):
    file = tmp_path / "dev"
    monkeypatch.setattr(interface, "_COUNTERS", file)
    assert interface_bytes("wire0") is None  # no such file: not Linux
    file.write_text(PRINTED)
    assert interface_bytes("wire0") == Counted(received=7700, sent=8400)
    assert interface_bytes("wire") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/net/dev")
def test_what_goes_through_loopback_is_counted_there():
    import socket

    before = interface_bytes("lo")
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as sender:
        receiver, _ = listener.accept()
        sender.sendall(bytes(100_000))
        got = 0
        while got < 100_000:
            got += len(receiver.recv(100_000))
        receiver.close()
    after = interface_bytes("lo")
    assert after.received - before.received >= 100_000  # others may send as well
    assert after.sent - before.sent >= 100_000
