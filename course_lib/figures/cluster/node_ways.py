"""The devices of a node: GPUs and network ports, on PCIe switches, CPUs and NVLink."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper.drawing import Drawing

_NEAR, _FAR, _OTHER = "fast: by switches alone", "slow: by the CPU", "others"


class Node(Protocol):
    """As `clinic.gpu_topology.Topology`."""

    @property
    def gpus(self) -> Sequence[str]: ...
    @property
    def near(self) -> frozenset[str]: ...
    @property
    def cpus(self) -> Sequence[Sequence[Sequence[str]]]: ...
    def nvlink(self, device: str) -> str: ...
    def nearest_port(self, gpu: str) -> tuple[str, str] | None: ...


def node_ways(nodes: Mapping[str, Node]) -> Drawing:
    """{"a server": what `nvidia-smi topo -m` prints}: a column for each device.

    Below a device are the PCIe switch and the CPU that it hangs on, above a GPU its NVLink.
    Coloured by how a GPU reaches its nearest port: by switches alone, or by the CPU.
    """
    return page("", *(_node(name, node) for name, node in nodes.items()), key=(_NEAR, _FAR))


def _node(name: str, node: Node) -> Cells:
    far = {gpu for gpu in node.gpus if node.nearest_port(gpu)} - node.near
    links, devices, switches, cpus = {}, {}, {}, {}
    for cpu in node.cpus:
        on = [*chain(*cpu)]
        cpus[on[0]] = Cell("CPU", {0: _FAR if far & {*on} else _OTHER}, wide=len(on))
        for switch in filter(lambda its: len(its) > 1, cpu):
            word = _NEAR if node.near & {*switch} else _FAR if far & {*on} else _OTHER
            switches[switch[0]] = Cell("PCIe switch", {0: word}, wide=len(switch))
        for device in on:
            devices[device] = Cell(device, {0: "computing" if device in node.gpus else "messages"})
            link = node.nvlink(device)
            links[device] = Cell(link, {0: _OTHER}) if link else Cell(slots=0)
    between = {}
    if len(cpus) > 1:
        told = "SYS: the link between CPUs"
        between[next(iter(devices))] = Cell(told, {0: _OTHER}, wide=len(devices))
    rows = {"NVLink": links} if any(map(node.nvlink, devices)) else {}
    rows |= {"devices": devices, "PCIe": switches, "CPUs": cpus, "between": between}
    note = f"{name}: {len(node.near)} of {len(node.gpus)} GPUs reach a port by switches alone"
    return Cells({row: its for row, its in rows.items() if its}, heads=False, note=note)
