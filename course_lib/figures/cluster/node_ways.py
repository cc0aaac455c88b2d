"""The devices of a node as a tree: GPUs and network ports, PCIe switches, CPUs, NVLink above."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from course_lib.figures.engines.cells import Cell, Cells
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing

_NEAR, _FAR, _OTHER = "fast: by switches alone", "slow: by the CPU", "others"
_LINES = {_NEAR: (style.MESSAGES, 3.0), _FAR: (style.WARNING, 3.0), _OTHER: (style.GREY, 1.0)}
_BETWEEN = 18.0
Way = tuple[str, str, str, str]  # row, column, the lower row, and how fast


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
    Lines are coloured by how a GPU reaches its nearest port: by switches alone, or by the CPU.
    """
    return page("", *(_node(name, node) for name, node in nodes.items()), key=(_NEAR, _FAR))


class _Tree(Cells):
    """Cells, and `ways` from the middle of one straight down to a lower row."""

    ways: Sequence[Way] = ()

    def draw(self, drawing: Drawing, top: float) -> None:
        rows, y = {}, top
        for row in self.grid:
            rows[row], y = y, y + self._row_height(row)
        for word, (colour, width) in _LINES.items():
            lines = []
            for row, column, lower, how in self.ways:
                x, high, wide, deep = self._box(column, self.grid[row][column], rows[row], row)
                if how == word:
                    lines.append([(x + wide / 2, high + deep), (x + wide / 2, rows[lower])])
            drawing.lines(lines, colour, width)
        super().draw(drawing, top)


def _node(name: str, node: Node) -> Cells:
    links, devices, switches, cpus = {}, {}, {}, {}
    for cpu in node.cpus:
        on = [*chain(*cpu)]
        cpus[on[0]] = Cell("CPU", {0: _OTHER}, wide=len(on), bold=True)
        for switch in filter(lambda its: len(its) > 1, cpu):
            switches[switch[0]] = Cell("PCIe switch", {0: _OTHER}, wide=len(switch))
        for device in on:
            devices[device] = Cell(device, {0: "computing" if device in node.gpus else "messages"})
            link = node.nvlink(device)
            links[device] = Cell(link, {0: _OTHER}) if link else Cell(slots=0)
    between = {}
    if len(cpus) > 1:
        told = "SYS: the link between CPUs"
        between[next(iter(devices))] = Cell(told, {0: _OTHER}, wide=len(devices))
    heading = f"{name}: {len(node.near)} of {len(node.gpus)} GPUs reach a port by switches alone"
    rows: dict[str, dict[str, Cell]] = {heading: {}}
    rows |= {"NVLink": links} if any(map(node.nvlink, devices)) else {}
    rows |= {"devices": devices, "PCIe": switches, "CPUs": cpus, "between": between}
    rows = {row: its for row, its in rows.items() if its or row == heading}
    tree = _Tree(rows, heads=False, between=_BETWEEN)
    tree.ways = [*_ways(node)]
    tree.ways += [("NVLink", its, "devices", _OTHER) for its in node.gpus if node.nvlink(its)]
    tree.ways += [("CPUs", its, "between", _OTHER) for its in cpus if between]
    return tree


def _ways(node: Node) -> Iterator[Way]:
    """From each device down to its switch, and from each switch down to its CPU."""
    far = {gpu for gpu in node.gpus if node.nearest_port(gpu)} - node.near
    for cpu in node.cpus:
        crossed = far & {*chain(*cpu)}
        for switch in cpu:
            ports = {*switch} - {*node.gpus}
            how = _FAR if crossed and (ports or far & {*switch}) else _OTHER
            if len(switch) == 1:
                yield "devices", switch[0], "CPUs", how
                continue
            yield "PCIe", switch[0], "CPUs", how
            for device in switch:
                yield "devices", device, "PCIe", _NEAR if node.near & {*switch} else how
