"""NCCL's choice of interfaces, and signs of trouble in the logs of NCCL and of torch's watchdog.

Source: NCCL's page of environment variables, and `matchIf` in its src/misc/utils.cc.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_lib.clinic.recorded import Sign, unreadable


def chosen(setting: str, names: Sequence[str]) -> list[str]:
    """The `names` that NCCL uses with this NCCL_IB_HCA or NCCL_SOCKET_IFNAME; all with "".

    "mlx5_1" matches every name with that prefix, "=mlx5_1" only that name, "^…" and "^=…" all
    others; several names are separated by commas. A port may follow a device: "mlx5_1:1". Raises
    ValueError for a mark without a name.
    """
    if not setting:
        return list(names)
    rest = setting.removeprefix("^")
    exact, wanted = rest.startswith("="), rest.removeprefix("=").split(",")
    if not all(wanted):
        raise ValueError(f"setting {setting!r} has a mark or a comma without a name: name a device")
    return [
        name
        for name in names
        if any(_matches(name, one, exact) for one in wanted) != setting.startswith("^")
    ]


def _matches(name: str, wanted: str, exact: bool) -> bool:
    (device, _, port), (prefix, _, wanted_port) = name.partition(":"), wanted.partition(":")
    same = device == prefix if exact else device.startswith(prefix)
    return same and (not port or not wanted_port or port == wanted_port)


# A network is followed by its device, optionally a proxy rank, and optionally GPUDirect RDMA.
_WAY = re.compile(r"Channel \d+(?:/\d+)? : .* via (P2P|SHM|NET/\w+)(?:/\d+(?:\(\d+\))?)?(/GDRDMA)?")
# Interfaces that reach no other node: bridges of virtual machines and docker, and the loopback.
_INNER = re.compile(r"(lo|docker|virbr|veth|br-)")


class NcclLog(NamedTuple):
    """The facts of an NCCL log; `network` is "IB", "Socket" or None.

    `ways` counts channels by transport: P2P, SHM, NET/Socket, NET/IB, and NET/IB/GDRDMA with
    GPUDirect RDMA; `no_gpudirect` is whether NCCL says that it is disabled.
    """

    network: str | None
    interfaces: tuple[str, ...]
    ways: Mapping[str, int]
    no_ib_device: bool
    no_gpudirect: bool
    warnings: tuple[str, ...]


def nccl_log(text: str) -> NcclLog:
    """Parse the NCCL log of one or more ranks. Raises ValueError if `text` has no line of NCCL."""
    if "NCCL" not in text:
        first = text.strip().splitlines()[0] if text.strip() else ""
        raise unreadable("NCCL_DEBUG=INFO", first, "a line with 'NCCL INFO'")
    network = re.search(r"Using network (?:\w*?)(IB|Socket)", text)
    sockets = re.findall(r"NET/Socket : Using (.*)", text)
    names = [name for line in sockets for name in re.findall(r"\]([\w.-]+):", line)]
    return NcclLog(
        network[1] if network else None,
        tuple(dict.fromkeys(names)),
        dict(Counter("".join(way) for way in _WAY.findall(text))),
        "NET/IB : No device found" in text,
        "GPU Direct RDMA Disabled" in text,
        tuple(re.findall(r"NCCL WARN (.*\S)", text)),
    )


def nccl_signs(log: NcclLog) -> list[Sign]:
    """Signs of a slow network, a wrong interface, and NCCL's warnings."""
    signs = []
    if log.network == "Socket" or "NET/Socket" in log.ways:
        why = "it found no InfiniBand device" if log.no_ib_device else "its log does not say why"
        do = "see `ibv_devices` here, pass /dev/infiniband, look for NCCL_IB_DISABLE=1"
        unsaid = "how fast that is: run all_reduce_perf"
        signs.append(Sign(f"NCCL sends over TCP sockets ({why})", do, unsaid))
    if log.no_gpudirect or "NET/IB" in log.ways:
        do = "load nvidia-peermem (or use a kernel and driver with DMA-BUF), turn PCIe's ACS off"
        unsaid = "whether GPU and card are near: see PIX or PXB in `nvidia-smi topo -m`"
        wrong = "NCCL sends over InfiniBand without GPUDirect RDMA, through the host's memory"
        signs.append(Sign(wrong, do, unsaid))
    inner = [name for name in log.interfaces if _INNER.match(name)]
    if inner:
        do = "set NCCL_SOCKET_IFNAME to the interface that reaches the other nodes"
        wrong = f"NCCL may use {', '.join(inner)}, which reaches no other node"
        signs.append(Sign(wrong, do))
    for warning in dict.fromkeys(log.warnings):
        signs.append(Sign(f"NCCL warned: {warning}", _remedy(warning)))
    return signs


def _remedy(warning: str) -> str:
    if "/dev/shm" in warning or "shared memory" in warning or "fallocate" in warning:
        return "start the container with --shm-size=16G or --ipc=host; `df -h /dev/shm`"
    if "ibv_" in warning and "Cannot allocate memory" in warning:
        return "raise the limit of locked memory: --ulimit memlock=-1, in a pod IPC_LOCK"
    if "open" in warning and ("ibv_open_device" in warning or "device" in warning):
        return "pass --device=/dev/infiniband to the container, in a pod ask for rdma/…"
    return "search NCCL's troubleshooting page for these words"


_LINE = re.compile(
    r"\[Rank (\d+)\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+), NumelOut=\d+, Timeout\(ms\)=(\d+)\)"
)


class Timeout(NamedTuple):
    """A collective that exceeded `limit_s`; `number` is its sequence number on that rank."""

    rank: int
    number: int
    operation: str
    numbers_in: int
    limit_s: float

    @property
    def call(self) -> str:
        """The rank's call in words: number, operation and elements."""
        return f"call {self.number}, {self.operation} of {self.numbers_in:,} numbers"


def timeouts(text: str) -> tuple[Timeout, ...]:
    """Parse the first timeout of each rank. Raises ValueError if `text` has none."""
    firsts: dict[int, Timeout] = {}
    for rank, number, operation, numbers_in, limit_ms in _LINE.findall(text):
        timeout = Timeout(int(rank), int(number), operation, int(numbers_in), int(limit_ms) / 1000)
        firsts.setdefault(timeout.rank, timeout)
    if not firsts:
        first = text.strip().splitlines()[0] if text.strip() else ""
        raise unreadable("torch", first, "'[Rank …] Watchdog caught collective operation timeout'")
    return tuple(firsts.values())


def timeout_signs(found: Sequence[Timeout]) -> list[Sign]:
    """A sign if ranks wait in different calls, or all in the same; empty without a timeout."""
    waiting: dict[str, list[int]] = {}
    for one in found:
        waiting.setdefault(one.call, []).append(one.rank)
    where = "; ".join(f"{_ranks(ranks)} in {call}" for call, ranks in waiting.items())
    if len(waiting) > 1:
        do = "look in the program for a branch that only some ranks take"
        unsaid = "which of them is wrong: compare the flight records"
        return [Sign(f"ranks wait in different calls: {where}", do, unsaid)]
    if not waiting:
        return []
    do = "look for a rank without such a line; if none is missing, test the network"
    unsaid = "what the missing rank does: ask py-spy, or the flight records"
    return [Sign(f"all waited for {found[0].limit_s:.0f} s: {where}", do, unsaid)]


def _ranks(ranks: Sequence[int]) -> str:
    *most, last = (str(rank) for rank in sorted(ranks))
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
