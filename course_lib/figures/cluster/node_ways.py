"""The devices of a node as a tree: GPUs and network ports, PCIe switches, CPUs, NVLink above."""

from collections.abc import Container, Mapping, Sequence
from itertools import chain

from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.text import counted

_BY_SWITCH = ("PIX", "PXB")
_BY_CPU = (*_BY_SWITCH, "PHB", "NODE")
_MOST = 12  # devices of a node
_TITLE, _LINKS, _DEVICE, _SWITCH, _CPU, _HEIGHT = 18.0, 34.0, 46.0, 84.0, 122.0, 178.0
_BOX = 20.0
Ways = Mapping[tuple[str, str], str]


def node_ways(nodes: Mapping[str, Ways]) -> Drawing:
    """{"a server": {("GPU0", "NIC0"): "PIX", …}}: the ways that `nvidia-smi topo -m` prints.

    Green: from a GPU to its port by switches alone; thick vermilion: by the CPU. Raises ValueError
    for no node, and for one without GPUs or with more than 12 devices.
    """
    if not nodes:
        raise ValueError('nodes is empty: give {"a server": {("GPU0", "NIC0"): "PIX"}}')
    for name, ways in nodes.items():
        devices = _devices(ways)
        if len(devices) > _MOST or not any(map(_is_gpu, devices)):
            raise ValueError(f"{name!r} has {devices}: draw a GPU or more, and at most {_MOST}")
    told = (_Node(name, ways) for name, ways in nodes.items())
    drawn = [(node, row * _HEIGHT) for row, node in enumerate(told)]
    sentence = "; ".join(f"{node.name}: {node.sentence}" for node, _ in drawn)
    drawing = Drawing(_HEIGHT * len(nodes) - 10, f"{sentence}.")
    for node, top in drawn:
        node.draw(drawing, top)
    return drawing


class _Node:
    """What belongs together: the devices of each CPU, and of each switch."""

    def __init__(self, name: str, ways: Ways) -> None:
        self.name, self.ways = name, ways
        self.devices = _devices(ways)
        self.cpus = [_joined(cpu, ways, _BY_SWITCH) for cpu in _joined(self.devices, ways, _BY_CPU)]
        order = [device for cpu in self.cpus for switch in cpu for device in switch]
        self.step = WIDTH_PT / len(order)
        self.x = {device: (place + 0.5) * self.step for place, device in enumerate(order)}

    @property
    def near(self) -> list[str]:
        """The GPUs with a port behind the same switches."""
        return [gpu for gpu in filter(_is_gpu, self.devices) if self._has_port(gpu, _BY_SWITCH)]

    @property
    def sentence(self) -> str:
        gpus = sum(map(_is_gpu, self.devices))
        return (
            f"{counted(gpus, 'GPU')}, {counted(len(self.devices) - gpus, 'port')} and "
            f"{counted(len(self.cpus), 'CPU')}; {len(self.near)} of the GPUs reach a port by "
            f"switches alone; {self._linked()}"
        )

    def draw(self, drawing: Drawing, top: float) -> None:
        """Devices, below them switches, below these the CPUs and what joins them."""
        drawing.write(0, top + 13, self.name, style.TITLE_PT, bold=True)
        self._draw_links(drawing, top)
        for cpu in self.cpus:
            self._draw_cpu(drawing, cpu, top)
        width = self.step - 8
        for device, x in self.x.items():
            fill = style.COMPUTING if _is_gpu(device) else style.MESSAGES
            drawing.boxes([(x - width / 2, top + _DEVICE, width, _BOX)], fill)
            drawing.write(x, top + _DEVICE + 14, device, 9, "center", style.on(fill))
        if len(self.cpus) > 1:
            ends = [self._middle([*chain(*cpu)]) for cpu in self.cpus]
            y = top + _CPU + _BOX + 8
            drawing.line([(ends[0], y), (ends[-1], y)], style.GREY)
            drawing.lines([[(x, y), (x, y - 8)] for x in ends], style.GREY)
            told = "SYS: the link between CPUs"
            drawing.write(sum(ends) / len(ends), y + 13, told, 9, "center", style.GREY)

    def _draw_links(self, drawing: Drawing, top: float) -> None:
        """NVLink, or that there is none."""
        y, linked = top + _LINKS, [gpu for gpu in self.x if self._links(gpu)]
        drawing.write(WIDTH_PT, top + 13, self._linked(), 9, "right", style.GREY)
        by = {way for way in self.ways.values() if way.startswith("NV")}
        for group in _joined(linked, self.ways, by):
            drawing.line([(self.x[group[0]], y), (self.x[group[-1]], y)], style.INK, 2)
            drops = [[(self.x[gpu], y), (self.x[gpu], top + _DEVICE)] for gpu in group]
            drawing.lines(drops, style.INK, 2)

    def _draw_cpu(self, drawing: Drawing, cpu: Sequence[list[str]], top: float) -> None:
        devices = [*chain(*cpu)]
        left, right = self.x[devices[0]], self.x[devices[-1]]
        for switch in cpu:
            far = any(_is_gpu(device) and device not in self.near for device in devices)
            ports = any(not _is_gpu(device) for device in switch)
            lone = len(switch) == 1 and not ports and self._has_port(switch[0], _BY_CPU)
            colour, width = (style.WARNING, 3.0) if far and (ports or lone) else (style.GREY, 1.0)
            middle = self._middle(switch)
            if len(switch) == 1:
                foot = [(middle, top + _DEVICE + _BOX), (middle, top + _CPU)]
                drawing.line(foot, colour, width)
                continue
            drawing.line([(middle, top + _SWITCH + _BOX), (middle, top + _CPU)], colour, width)
            good = any(device in self.near for device in switch)
            to = (style.MESSAGES, 3.0) if good else (colour, width)
            for device in switch:
                x = self.x[device]
                drawing.line([(x, top + _DEVICE + _BOX), (x, top + _SWITCH)], *to)
            ends = self.x[switch[0]] - 24, self.x[switch[-1]] + 24
            box = (ends[0], top + _SWITCH, ends[1] - ends[0], _BOX)
            drawing.boxes([box], style.PALE)
            told = "PCIe switch" if ends[1] - ends[0] > 60 else "PCIe"
            drawing.write(middle, top + _SWITCH + 14, told, 9, "center")
        width = max(right - left, 24) + 24
        drawing.boxes([(self._middle(devices) - width / 2, top + _CPU, width, _BOX)], style.PALE)
        drawing.write(self._middle(devices), top + _CPU + 14, "CPU", 9, "center", bold=True)

    def _middle(self, devices: Sequence[str]) -> float:
        return (self.x[devices[0]] + self.x[devices[-1]]) / 2

    def _has_port(self, gpu: str, by: Sequence[str]) -> bool:
        return any(
            not _is_gpu(other) and self.ways[gpu, other] in by
            for other in self.devices
            if other != gpu
        )

    def _links(self, gpu: str) -> list[str]:
        found = (self.ways[gpu, other] for other in self.devices if other != gpu)
        return [way for way in found if way.startswith("NV")]

    def _linked(self) -> str:
        words = sorted({way for gpu in self.x for way in self._links(gpu)})
        return f"above the GPUs: {', '.join(words)}, NVLink" if words else "no NVLink"


def _devices(ways: Ways) -> list[str]:
    return list(dict.fromkeys(name for name, _ in ways))


def _is_gpu(device: str) -> bool:
    return device.startswith("GPU")


def _joined(devices: Sequence[str], ways: Ways, by: Container[str]) -> list[list[str]]:
    """Devices in groups: whoever reaches one of a group in one of these ways belongs to it."""
    groups: list[list[str]] = []
    for device in devices:
        near = [group for group in groups if any(ways[device, other] in by for other in group)]
        groups = [group for group in groups if group not in near] + [[*chain(*near), device]]
    return sorted(groups, key=lambda group: devices.index(group[0]))
