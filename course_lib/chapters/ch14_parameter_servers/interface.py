"""What the kernel counted on a network interface, whoever sent it."""

from pathlib import Path
from typing import NamedTuple

_COUNTERS = Path("/proc/net/dev")  # of this process's own network namespace
_SENT = 8  # columns of what was received stand before those of what was sent


class Counted(NamedTuple):
    """Bytes that came in and went out, with all headers up to Ethernet's."""

    received: int
    sent: int


def interface_bytes(name: str) -> Counted | None:
    """Bytes through interface `name` so far; None if there is none."""
    lines = _COUNTERS.read_text().splitlines() if _COUNTERS.exists() else []
    for line in lines:
        interface, _, numbers = line.partition(":")
        if interface.strip() == name:
            columns = numbers.split()
            return Counted(int(columns[0]), int(columns[_SENT]))
    return None
