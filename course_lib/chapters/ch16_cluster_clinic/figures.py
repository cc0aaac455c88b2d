"""Figures of chapter 16, in addition to those of the library."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Protocol

from course_lib.chapters.ch16_cluster_clinic.pairwise import PairTest, SlowPart
from course_lib.chapters.ch16_cluster_clinic.slowest import OneSlowLink
from course_lib.figures import *  # noqa: F403
from course_lib.figures.engines.cells import Cell, Cells, cells
from course_lib.figures.engines.lanes import Lanes
from course_lib.figures.engines.lines import Axis, Curve, graph, powers
from course_lib.figures.engines.page import page
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import WIDTH_PT, Drawing, counted, elide
from course_lib.theory.compute.rounding import MORE_FROM, ROUNDING_UP_TO
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.trace import Event

# --- flight records -----------------------------------------------------------------------------
# The calls of several ranks by number, and the first number at which they differ.


def flight_records(calls: Mapping[str, Sequence[str]], title: str = "") -> Drawing:
    """A grid of calls from {"rank 0": ["4 × 4", "2 × 2"], …}: a row per rank, a column per call."""
    columns = list(zip_longest(*calls.values()))
    split = next((n for n, column in enumerate(columns, 1) if len(set(column)) > 1), 99)
    grid = {
        rank: {
            str(n): Cell(
                call, {0: "alike" if n < split else "differs" if n == split else "after it"}
            )
            for n, call in enumerate(row, 1)
        }
        for rank, row in calls.items()
    }
    return page(title, Cells(grid, high=24.0))


# --- meters -------------------------------------------------------------------------------------
# Meter readings of several devices: a row per device, a bar per meter.


_SLOTS = 100  # resolution of a bar


def meters(
    readings: Mapping[str, Mapping[str, float | None]],
    full: Mapping[str, float],
    title: str = "",
) -> Drawing:
    """Bars of meter readings, from {"GPU 0": {"busy, %": 100, "power, W": 655}}.

    `full`: the value of a full bar, by meter. A reading of None is one that the device lacks.
    """
    names = {name: f"{name} (of {format_number(most, 6)})" for name, most in full.items()}
    grid = {
        device: {names[name]: _bar(reading[name], most) for name, most in full.items()}
        for device, reading in readings.items()
    }
    said = (
        f"{device}: {', '.join(f'{name} {cell.text}' for name, cell in row.items())}"
        for device, row in grid.items()
    )
    return page(title, Cells(grid, gap=14, high=11, below=True, said="; ".join(said)))


def _bar(value: float | None, most: float) -> Cell:
    filled = dict.fromkeys(range(round(_SLOTS * (value or 0) / most)), "computing")
    said = "not told" if value is None else format_number(value, 6)
    return Cell(said, filled, _SLOTS)


# --- node ways ----------------------------------------------------------------------------------
# The devices of a node as a tree: GPUs and network ports, PCIe switches, CPUs, NVLink above.


_NEAR, _FAR, _OTHER = "fast: by switches alone", "slow: by the CPU", "others"
_LINES = {_NEAR: (style.MESSAGES, 3.0), _FAR: (style.WARNING, 3.0), _OTHER: (style.GREY, 1.0)}
_BETWEEN = 18.0
Way = tuple[str, str, str, str]  # row, column, the lower row, and a key of _LINES


class Node(Protocol):
    """A node's topology: the part of `clinic.gpu_topology.Topology` that the figure needs."""

    @property
    def gpus(self) -> Sequence[str]: ...
    @property
    def near(self) -> frozenset[str]: ...
    @property
    def cpus(self) -> Sequence[Sequence[Sequence[str]]]: ...
    def nvlink(self, device: str) -> str: ...
    def nearest_port(self, gpu: str) -> tuple[str, str] | None: ...


def node_ways(nodes: Mapping[str, Node]) -> Drawing:
    """The topology of each node, from {"a server": topology}, with a column per device.

    Below a device are the PCIe switch and the CPU that it is attached to, above a GPU its NVLink.
    Lines are coloured by how a GPU reaches its nearest port: by switches alone, or by the CPU.
    """
    return page("", *(_node(name, node) for name, node in nodes.items()), key=(_NEAR, _FAR))


class _Tree(Cells):
    """Cells, and `ways`: vertical lines from the middle of a cell down to a lower row."""

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
        words = "SYS: the link between CPUs"
        between[next(iter(devices))] = Cell(words, {0: _OTHER}, wide=len(devices))
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
    """Yield the lines from each device to its switch, and from each switch to its CPU."""
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


# --- one slow link ------------------------------------------------------------------------------
# A ring with one slow link, and what it does to the time of an all-reduce.


_MOST_DRAWN = 8


def slow_ring(result: OneSlowLink, title: str = "") -> Drawing:
    """The ring of ranks with its slow link, and below it the times on a common scale."""
    bus = result.healthy_bus_bytes_per_s
    times = {
        "all links alike": (result.healthy_s, bus, "all-reduce"),
        "one link slow": (result.slow_s, result.slow_bus_bytes_per_s, "slow"),
    }
    if result.without_s is not None:
        without = bus * result.healthy_s / result.without_s
        times["its ring left out"] = (result.without_s, without, "all-reduce")
    rows: dict[str, list[Event]] = {
        f"{name}: {format_seconds(time_s)}, {format_number(bus / 1e9)} GB/s": [
            Event(0, 0, word, end=time_s)
        ]
        for name, (time_s, bus, word) in times.items()
    }
    if result.without_s is None:
        rows["no other ring"] = []  # keeps the height constant while a slider moves
    ranks, rings = counted(result.ranks, "rank"), counted(result.rings, "ring")
    ring = {}
    for rank in range(min(result.ranks, _MOST_DRAWN)):
        slow = rank == 0 and result.factor > 1
        ring[f"rank {rank}"] = Cell(str(rank), {0: "computing"})
        ring[f"link {rank}"] = Cell("", {0: "slow" if slow else "messages"})
    shown = f", {_MOST_DRAWN} of them drawn" * (result.ranks > _MOST_DRAWN)
    gbit = format_number(8 * result.slow_bytes_per_s / 1e9)
    note = f"a ring of {ranks}{shown}: rank 0's link has {gbit} Gb/s"
    drawn = Cells({"": ring}, heads=False, gap=0.0, high=16.0, note=note, said="a ring")
    longer = f"{format_number(result.factor)} times as long for every rank"
    return page(
        title or f"{ranks}, {rings}",
        drawn,
        Lanes(rows, sentence=f"{'; '.join(rows)}: {longer}"),
        key=(),
        notes=["time and bus bandwidth: every piece passes over every link of its ring"],
    )


# --- pair rates ---------------------------------------------------------------------------------
# The rates of pairs of ranks as a grid, slow pairs marked.


def pair_rates(tests: Sequence[PairTest], found: SlowPart, title: str = "") -> Drawing:
    """The rate of each pair of ranks, in MB/s; `found` has the slow and usual rates."""
    ranks = 1 + max(max(test.first, test.second) for test in tests)
    grid = {
        f"rank {a}": {
            f"rank {b}": Cell("", {0: "not tested"}) if a != b else Cell(slots=0)
            for b in range(ranks)
        }
        for a in range(ranks)
    }
    for test in tests:
        rate = format_number(test.bytes_per_s / 1e6, 3 if ranks < 6 else 2)
        cell = Cell(rate, {0: "slow" if found.is_slow(test) else "fast"})
        first, second = f"rank {test.first}", f"rank {test.second}"
        grid[first][second] = grid[second][first] = cell
    slow = sum(map(found.is_slow, tests))
    words = f"{slow} of {len(tests)} tested pairs of {ranks} ranks are slow: {found.explain()}"
    note = "MB/s between two ranks, one way"
    return cells(grid, title, note=note, said=words, gap=3.0, high=28.0)


# --- rank stacks --------------------------------------------------------------------------------
# The stacks of several ranks side by side, to compare where each of them is.


_WORDS = {"yours": "your program", "torch": "torch", "communication": "torch.distributed"}
_MOST, _CHARACTER = 24, 5.7
Line = tuple[str, str]  # function, kind


def rank_stacks(stacks: Mapping[str, Sequence[Line]], title: str = "") -> Drawing:
    """Stacks from {"rank 0": [("train", "yours"), …, ("all_gather", "communication")]}.

    The innermost function is last, drawn on top and framed. Each line has a function and a kind:
    yours, torch or communication.
    """
    letters = int(((WIDTH_PT - 30) / len(stacks) - 12) / _CHARACTER)
    high = max(map(len, stacks.values()))
    grid: dict[str, dict[str, Cell]] = {
        str(index + 1): {} for index in reversed(range(min(high, _MOST)))
    }
    for rank, lines in stacks.items():
        shown = elide(len(lines), _MOST)
        for height, index in enumerate(shown, 1):
            function, kind = ("…", "torch") if index is None else lines[index]
            text = function if len(function) <= letters else function[: letters - 1] + "…"
            frame = "standing" if height == len(shown) else ""
            grid[str(height)][rank] = Cell(text, {0: _WORDS[kind]}, frame=frame)
    sentences = (
        f"{name} stands in {lines[-1][0]} of {_WORDS[lines[-1][1]]}, {counted(len(lines), 'line')}"
        for name, lines in stacks.items()
    )
    return page(title, Cells(grid, high=15.0, between=0.0, said="; ".join(sentences)))


# --- tensor by tensor ---------------------------------------------------------------------------
# The differences of two recorded updates, tensor by tensor, in units of expected rounding.


_EQUAL = 1e-3  # the ratio at which tensors are drawn that are bitwise equal


class Tensor(Protocol):
    """One tensor of both runs: the part of comparing.Judged that the figure needs."""

    @property
    def title(self) -> str: ...
    @property
    def measured(self) -> float: ...
    @property
    def typical(self) -> float: ...


def tensor_by_tensor(runs: Mapping[str, Sequence[Tensor]], title: str = "") -> Drawing:
    """Difference over typical rounding per tensor, from {"right": tensors, "broken": tensors}.

    Two horizontal lines: up to the lower it is rounding, from the upper on more than rounding.
    """
    curves, by_colour, marks, most = {}, {}, {}, MORE_FROM
    for (name, run), colour in zip(runs.items(), (style.BLUE, style.VERMILION), strict=False):
        ratios = [one.measured / one.typical for one in run]
        first = next((n for n, ratio in enumerate(ratios) if ratio > ROUNDING_UP_TO), None)
        said = f"{format_number(max(ratios), 2)} times the typical rounding at most"
        if first is not None:
            said = f"number {first + 1} of {len(run)} is off by {format_number(ratios[first], 3)}"
            marks[f"{name}, the first: {run[first].title}"] = first + 0.5
        by_colour[colour] = [(n + 0.5, max(ratio, _EQUAL)) for n, ratio in enumerate(ratios)]
        curves[name] = Curve((), colour, said, dots=by_colour[colour][:1])
        most = max(most, *ratios)
    up = powers([_EQUAL, most], _times, "difference over the typical rounding")
    across = Axis((), label="tensors, in their order", ends=(0, max(map(len, runs.values()))))
    limits = {
        f"rounding: up to {ROUNDING_UP_TO:g} times": ROUNDING_UP_TO,
        f"more than rounding: from {MORE_FROM:g} times": MORE_FROM,
    }
    frame = graph(curves, title, across, up, marks=marks, levels=limits)
    for colour, points in by_colour.items():
        boxes = [(frame.x(x) - 2, frame.y(y) - 2, 4.0, 4.0) for x, y in points]
        frame.drawing.boxes(boxes, colour, edge=colour)
    return frame.drawing


def _times(ratio: float) -> str:
    return "equal" if ratio <= _EQUAL else format_number(ratio, 6)
