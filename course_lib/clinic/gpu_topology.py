"""`nvidia-smi topo -m`: how the GPUs and the network ports of a node reach each other.

Format: the legend that the command prints; https://docs.nvidia.com/deploy/nvidia-smi/.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from course_lib.clinic.sign import Sign, unreadable

# From near to far: at most one PCIe switch, several, the CPU, its other bridges, the other CPU.
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_BY_SWITCH, _BY_CPU = WAYS[:2], WAYS[:4]
_MEANING = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU",
    "NODE": "two bridges of one NUMA node",
    "SYS": "the link between two NUMA nodes",
}
_NAME = re.compile(r"(GPU|NIC|mlx\d_|ib)\d+$|mlx5_\w+$")


@dataclass(frozen=True)
class Topology:
    """The path between any two devices, as printed: NV18, PIX, …, SYS."""

    devices: tuple[str, ...]
    ways: Mapping[tuple[str, str], str]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs among the devices."""
        return tuple(name for name in self.devices if name.startswith("GPU"))

    def nearest_port(self, gpu: str) -> tuple[str, str] | None:
        """The network port with the shortest path to `gpu`, and that path; None without ports."""
        ports = [name for name in self.devices if name not in self.gpus]
        known = [(port, self.ways[gpu, port]) for port in ports]
        return min(known, key=lambda pair: WAYS.index(pair[1]), default=None)

    @property
    def near(self) -> frozenset[str]:
        """The GPUs that reach a network port by PCIe switches alone."""
        nearest = {gpu: self.nearest_port(gpu) for gpu in self.gpus}
        return frozenset(gpu for gpu, port in nearest.items() if port and port[1] in _BY_SWITCH)

    @property
    def cpus(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """By CPU, and within it by PCIe switch, the devices that hang on it."""
        switches = self._joined(_BY_SWITCH)
        return tuple(
            tuple(switch for switch in switches if switch[0] in cpu)
            for cpu in self._joined(_BY_CPU)
        )

    def nvlink(self, device: str) -> str:
        """The NVLinks of a GPU as printed, such as NV18; "" without."""
        ways = (self.ways[device, other] for other in self.devices)
        return ", ".join(sorted({way for way in ways if way.startswith("NV")}))

    def _joined(self, ways: Sequence[str]) -> list[tuple[str, ...]]:
        """Groups of devices that chains of these paths join, by their first device."""
        found: list[tuple[str, ...]] = []
        for device in self.devices:
            near = [its for its in found if any(self.ways[device, one] in ways for one in its)]
            found = [its for its in found if its not in near]
            found.append((*chain(*near), device))
        return sorted(found, key=lambda its: self.devices.index(its[0]))


def topology(text: str) -> Topology:
    """The matrix of `nvidia-smi topo -m`, up to its legend. Raises ValueError for a broken row."""
    lines = text.partition("Legend")[0].splitlines()
    heading = next((line.split() for line in lines if line.lstrip().startswith("GPU0")), [])
    devices = tuple(name for name in heading if _NAME.match(name))
    if not devices:
        raise unreadable("nvidia-smi topo -m", lines[0] if lines else "", "a heading with GPU0")
    ways = {}
    for line in lines:
        name, *cells = line.split() or [""]
        if name not in devices or [name, *cells] == heading:
            continue
        row = cells[: len(devices)]
        if len(row) < len(devices) or not all(_is_way(cell) for cell in row):
            raise unreadable("nvidia-smi topo -m", line, f"{len(devices)} of X, NV#, PIX … SYS")
        ways.update({(name, other): way for other, way in zip(devices, row, strict=True)})
    if missing := [name for name in devices if (name, name) not in ways]:
        raise unreadable("nvidia-smi topo -m", lines[-1], f"a row for {missing[0]}")
    return Topology(devices, ways)


def topology_signs(found: Topology) -> list[Sign]:
    """GPUs far from every network port, and pairs of GPUs that lack the NVLink of the others."""
    signs = []
    for gpu in found.gpus:
        nearest = found.nearest_port(gpu)
        if nearest and WAYS.index(nearest[1]) >= WAYS.index("PHB"):
            wrong = f"{gpu} reaches its nearest port {nearest[0]} over {_MEANING[nearest[1]]}"
            do = "expect less than the port's rate, and no GPUDirect RDMA by default"
            unsaid = "how fast that way is: measure it with nccl-tests on two nodes"
            signs.append(Sign(f"{wrong} ({nearest[1]})", do, unsaid))
    ways = {
        (a, b): found.ways[a, b]
        for a in found.gpus
        for b in found.gpus
        if found.gpus.index(a) < found.gpus.index(b)
    }
    linked = [pair for pair, way in ways.items() if way.startswith("NV")]
    for (a, b), way in ways.items():
        if linked and not way.startswith("NV"):
            do = "keep tensor parallelism within GPUs that have NVLink, or look for a broken link"
            signs.append(Sign(f"{a} and {b} have no NVLink ({way}), other pairs have", do))
    if ways and not linked and "SYS" in ways.values():
        wrong = "there is no NVLink, and some pairs of GPUs talk from one NUMA node to another"
        signs.append(Sign(wrong, "keep tensor parallelism within the GPUs of one NUMA node"))
    return signs


def _is_way(cell: str) -> bool:
    return cell == "X" or cell in WAYS or re.fullmatch(r"NV\d+", cell) is not None
