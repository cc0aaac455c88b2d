"""What went over a port: /sys/class/infiniband/*/ports/*/counters, and `mlnx_perf`.

`port_xmit_data` and `port_rcv_data` count words of 4 bytes. Source:
https://docs.kernel.org/infiniband/sysfs.html and the InfiniBand specification's PortCounters.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.clinic.sign import Sign, unreadable
from course_lib.validation import number

WORD_BYTES = 4
# Bits that go wrong on the way; one now and then is usual, many in a minute mean a bad cable.
ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors")
# Where old counters of 8, 16 and 32 bits stop: they stay there, and tell nothing more.
_ENDS = (2**8 - 1, 2**16 - 1, 2**32 - 1)


@dataclass(frozen=True)
class PortCounters:
    """One reading of one port; a counter that the device does not have is left out."""

    device: str
    port: int
    values: Mapping[str, int]


@dataclass(frozen=True)
class PortRates:
    """Between two readings."""

    sent_bytes_per_s: float
    received_bytes_per_s: float
    new_errors: Mapping[str, int]


def counters(text: str) -> PortCounters:
    """`grep . /sys/class/infiniband/DEVICE/ports/PORT/counters/*`, of one port.

    Raises ValueError for another line, or for counters of two ports.
    """
    values: dict[str, int] = {}
    where: set[tuple[str, int]] = set()
    for line in filter(str.strip, text.splitlines()):
        match = re.match(r"/sys/class/infiniband/(\S+?)/ports/(\d+)/counters/(\w+):(.*)", line)
        if not match or not re.fullmatch(r"\d+|N/A.*", match[4].strip()):
            raise unreadable("grep", line, "a path of a counter and a number")
        where.add((match[1], int(match[2])))
        if match[4].strip().isdigit():
            values[match[3]] = int(match[4])
    if len(where) != 1:
        raise ValueError(f"counters of {len(where)} ports were given: give those of one port")
    ((device, port),) = where
    return PortCounters(device, port, values)


def rates(before: PortCounters, after: PortCounters, seconds: float) -> PortRates:
    """Bytes per second from two readings: 4 · (after - before) / seconds.

    Raises ValueError for another port, for a missing counter, and for one that went back.
    """
    number("seconds", seconds, above=0)
    if (before.device, before.port) != (after.device, after.port):
        raise ValueError("before and after are of two ports: read the same one twice")
    moved = []
    for name in ("port_xmit_data", "port_rcv_data"):
        if name not in before.values or name not in after.values:
            raise ValueError(f"{name} is missing: this device does not count it, use `mlnx_perf`")
        words = after.values[name] - before.values[name]
        if words < 0:
            raise ValueError(f"{name} went back by {-words}: it was reset, read it twice again")
        moved.append(words * WORD_BYTES / seconds)
    grown = {n: after.values.get(n, 0) - before.values.get(n, 0) for n in ERRORS}
    sent, received = moved
    return PortRates(sent, received, {name: count for name, count in grown.items() if count > 0})


def mlnx_perf(text: str) -> dict[str, float]:
    """`mlnx_perf -i ib0`: bytes per second of each counter of bytes; other counters are left out.

    Raises ValueError for a line of bytes that has no number.
    """
    found = {}
    for line in text.splitlines():
        if "bytes" in line:
            match = re.match(r"\s*(\w*bytes\w*): ([\d,.]+) Bps\b", line)
            if not match:
                raise unreadable("mlnx_perf", line, "'rx_vport_rdma_unicast_bytes: 6,184 Bps'")
            found[match[1]] = float(match[2].replace(",", ""))
    return found


def counter_signs(reading: PortCounters) -> list[Sign]:
    """Counters that have reached their limit, and a link that went down."""
    signs = []
    for name, value in reading.values.items():
        if value in _ENDS:
            wrong = f"{name} of {reading.device} port {reading.port} stands at its end, {value}"
            do = "have it reset (`perfquery -R`) and read it again"
            signs.append(Sign(wrong, do, "how much came since it got there, or when"))
    if not reading.values:
        do = "use `mlnx_perf`, `ethtool -S` or `rdma statistic` instead"
        signs.append(Sign(f"{reading.device} port {reading.port} has no such counters", do))
    return signs


def rate_signs(now: PortRates, link_bytes_per_s: float) -> list[Sign]:
    """Errors that came between the readings, and a link that is full."""
    number("link_bytes_per_s", link_bytes_per_s, above=0)
    signs = []
    for name, count in now.new_errors.items():
        do = "reseat the cable or replace it; watch whether it keeps growing"
        signs.append(Sign(f"{name} grew by {count}", do, "which end of the cable is to blame"))
    busiest = max(now.sent_bytes_per_s, now.received_bytes_per_s)
    if busiest > 0.9 * link_bytes_per_s:
        wrong = f"the port is full: {busiest / 1e9:.3g} of {link_bytes_per_s / 1e9:.3g} GB/s"
        do = "the network is the limit now: send less, or use more ports"
        signs.append(Sign(wrong, do, "whose bytes these are"))
    return signs
