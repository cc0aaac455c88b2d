"""Parsers for RDMA ports: `ibstat`, `ibstatus`, `ibv_devinfo`, `ibv_devices`, `rdma link`.

Formats: rdma-core's infiniband-diags and libibverbs/examples, iproute2's rdma-link(8).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib import validation
from course_lib.clinic.recorded import Sign, unreadable

LANES = 4  # of a standard cable; on a single lane HDR has 50 Gb/s instead of 200
_UNSAID = "why: cable, plug, the switch's side, or meant to be so (a port for storage)"
_STATES = {
    "Disabled": "it is switched off: ask whether it is used at all",
    "Polling": "it finds nobody at the other end: cable, plug, or the switch's port",
    "LinkUp": "the cable works, and no subnet manager has made it active: ask for `opensm`",
}


@dataclass(frozen=True)
class Port:
    """One port, with None for values that the command lacks; strings are spelled as by ibstat."""

    device: str
    port: int
    state: str
    physical: str | None = None
    gbit_per_s: float | None = None
    lanes: int | None = None
    link_layer: str | None = None
    mtu_bytes: int | None = None
    most_mtu_bytes: int | None = None

    @property
    def name(self) -> str:
        """Device and port number, as "mlx5_0 port 1"."""
        return f"{self.device} port {self.port}"


# By command: patterns of the headings of a device and of a port, and for each field of a Port its
# label, a pattern whose group is the value, and the conversion.
_Fields = dict[str, tuple[str, str, Callable[[str], object]]]
_ANY = r"(.+)"
_FORMATS: dict[str, tuple[str, str, _Fields]] = {
    "ibstat": (
        r"^CA '([^']+)'",
        r"^\s+Port (\d+):",
        {
            "state": ("State", _ANY, str),
            "physical": ("Physical state", _ANY, str),
            "gbit_per_s": ("Rate", r"([\d.]+)$", float),
            "link_layer": ("Link layer", _ANY, str),
        },
    ),
    "ibstatus": (
        r"^Infiniband device '([^']+)'",
        r"^ port (\d+) status:",
        {
            "state": ("state", r"\d+: (\w+)", str.capitalize),
            "physical": ("phys state", r"\d+: (.+)", str),
            "gbit_per_s": ("rate", r"([\d.]+) Gb/sec \(\d+X", float),
            "lanes": ("rate", r"[\d.]+ Gb/sec \((\d+)X", int),
            "link_layer": ("link_layer", _ANY, str),
        },
    ),
    "ibv_devinfo": (
        r"^hca_id:\s+(\S+)",
        r"^\s+port:\s+(\d+)",
        {
            "state": ("state", r"(?:PORT_)?(\w+)", str.capitalize),
            "link_layer": ("link_layer", _ANY, str),
            "mtu_bytes": ("active_mtu", r"(\d+)", int),
            "most_mtu_bytes": ("max_mtu", r"(\d+)", int),
        },
    ),
}


def ibstat(text: str) -> tuple[Port, ...]:
    """Parse `ibstat`: "CA 'mlx5_0'", "Port 1:", fields. Raises ValueError if it cannot."""
    return _ports(text, "ibstat")


def ibstatus(text: str) -> tuple[Port, ...]:
    """Parse `ibstatus`, which includes the lanes: "200 Gb/sec (4X HDR)"."""
    return _ports(text, "ibstatus")


def ibv_devinfo(text: str) -> tuple[Port, ...]:
    """Parse `ibv_devinfo`, which includes the packet size (MTU), but not the rate."""
    return _ports(text, "ibv_devinfo")


def _ports(text: str, command: str) -> tuple[Port, ...]:
    device_heading, port_heading, fields = _FORMATS[command]
    for line in text.splitlines():
        if line.strip() and not line[0].isspace() and not re.match(device_heading, line):
            raise unreadable(command, line, "a device, or a field of one further in")
    ports = []
    for device, below in _parts(text, device_heading):
        for number, body in _parts(below, port_heading):
            values: Any = {name: _value(body, command, *how) for name, how in fields.items()}
            ports.append(Port(device, int(number), **values))
    return tuple(ports)


def _parts(text: str, heading: str) -> Iterator[tuple[str, str]]:
    """(name, text below) for each heading; the text before the first one is dropped."""
    pieces = re.split(heading, text, flags=re.M)
    return zip(pieces[1::2], pieces[2::2], strict=True)


def _value(
    body: str, command: str, label: str, pattern: str, make: Callable[[str], object]
) -> object:
    line = re.search(rf"^\s*{label}:[ \t]*(\S.*?)\s*$", body, re.M)
    value = re.match(pattern, line[1]) if line else None
    if value is None:
        lines = [line[1]] if line else [one for one in body.splitlines() if one.strip()] or [""]
        raise unreadable(command, lines[-1], f"'{label}: …'")
    return make(value[1])


def ibv_devices(text: str) -> dict[str, str]:
    """Parse `ibv_devices`: {device: GUID} of the devices that a program can open."""
    guids = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] not in ("device", "------"):
            if len(words) != 2 or not re.fullmatch(r"[\da-f]{16}", words[1]):
                raise unreadable("ibv_devices", line, "a device and 16 hexadecimal digits")
            guids[words[0]] = words[1]
    return guids


def rdma_link(text: str) -> tuple[Port, ...]:
    """Parse `rdma link`, which prints one line per port."""
    ports = []
    for line in filter(str.strip, text.splitlines()):
        match = re.match(r"link (\S+)/(\d+) .*?state (\S+) physical_state (\S+)", line)
        if not match:
            raise unreadable("rdma link", line, "'link mlx5_0/1 … state ACTIVE physical_state …'")
        physical = match[4].replace("LINK_UP", "LinkUp").replace("_", " ")
        physical = physical if physical == "LinkUp" else physical.capitalize()
        ports.append(Port(match[1], int(match[2]), match[3].capitalize(), physical))
    return tuple(ports)


def port_signs(ports: Sequence[Port]) -> list[Sign]:
    """Signs of ports that are down, slower than their peers, short of lanes, or on a small MTU."""
    signs = []
    for port in ports:
        if port.state != "Active":
            do = _STATES.get(port.physical or "", "see `ibstat` for its physical state")
            physical = f" ({port.physical})" if port.physical else ""
            signs.append(Sign(f"{port.name} is {port.state}{physical}", do, _UNSAID))
            continue
        alike = [p for p in ports if p.state == "Active" and p.link_layer == port.link_layer]
        best = max(p.gbit_per_s or 0 for p in alike)
        if port.gbit_per_s is not None and port.gbit_per_s < best:
            wrong = (
                f"{port.name} runs at {port.gbit_per_s:g} Gb/s, its neighbours at {best:g}: "
                f"a ring over it is {best / port.gbit_per_s:.2g} times as slow for everybody"
            )
            do = "see `ibstatus` for its lanes, reseat the cable or replace it"
            signs.append(Sign(wrong, do, _UNSAID))
        if port.lanes is not None and port.lanes < LANES:
            wrong = f"{port.name} uses {port.lanes} of {LANES} lanes"
            signs.append(Sign(wrong, "reseat the cable or replace it", _UNSAID))
        if port.mtu_bytes and port.mtu_bytes < (port.most_mtu_bytes or 0):
            wrong = f"{port.name} sends packets of {port.mtu_bytes} bytes and could send "
            do = "for RoCE raise the MTU of its network interface, and of the switch (jumbo frames)"
            signs.append(Sign(wrong + f"{port.most_mtu_bytes}", do, "how much that costs"))
    return signs


def device_signs(devices: dict[str, str]) -> list[Sign]:
    """Signs of a missing device, or of one without a GUID."""
    if not devices:
        do = "in a container pass /dev/infiniband, in a pod ask for rdma/…; else see `lspci`"
        return [Sign("no RDMA device can be opened here", do, "whether the machine has one")]
    return [
        Sign(f"{name} has the GUID 0", "have the virtual function given one: rdma_cm needs it")
        for name, guid in devices.items()
        if not int(guid, 16)
    ]


WORD_BYTES = 4
# Transmission errors; an occasional one is normal, many per minute indicate a bad cable.
ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors")
# Limits at which old counters of 8, 16 and 32 bits saturate.
_ENDS = (2**8 - 1, 2**16 - 1, 2**32 - 1)


@dataclass(frozen=True)
class PortCounters:
    """One reading of one port; counters that the device lacks are omitted."""

    device: str
    port: int
    values: Mapping[str, int]


@dataclass(frozen=True)
class PortRates:
    """Rates and new errors between two readings of one port."""

    sent_bytes_per_s: float
    received_bytes_per_s: float
    new_errors: Mapping[str, int]


def counters(text: str) -> PortCounters:
    """Parse `grep . /sys/class/infiniband/DEVICE/ports/PORT/counters/*`, for one port.

    Raises ValueError for any other line, or for counters of several ports.
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

    Raises ValueError for different ports, a missing counter, or one that decreased.
    """
    validation.number("seconds", seconds, above=0)
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


def counter_signs(reading: PortCounters) -> list[Sign]:
    """Signs of saturated counters, or of a port without counters."""
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
    """Signs of new errors between the readings, and of a saturated link."""
    validation.number("link_bytes_per_s", link_bytes_per_s, above=0)
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
