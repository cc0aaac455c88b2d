"""Panels of chapter 6, in addition to those of the library."""

from course_lib.chapters.ch06_collectives import figures
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import by_name, choice, ethernet, powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.hardware import ACCELERATORS, HDR, NDR, PCIE4, Link
from course_lib.theory.inputs.units import KIB, format_number, format_seconds
from course_lib.theory.network.all_reduce import ring_or_tree
from course_lib.theory.network.collectives import OPERATIONS

_LINKS = by_name(
    ACCELERATORS["H100-SXM"].inside,
    ACCELERATORS["A100-SXM-80GB"].inside,
    PCIE4,
    NDR,
    HDR,
    ethernet(10),
)


def collectives(
    operation: str = "all-reduce",
    ranks: int = 8,
    size_kib: int = 64,
    link: str | Link = "NVLink4",
    tree: str = "tree",
) -> Panel:
    """Controls for `ring_or_tree`, whose `RingOrTree` is the panel's result.

    `link` is a name or a custom Link, which is then offered first and selected. Raises ValueError
    for starting values that are not offered.
    """
    custom, name = ({link.name: link}, link.name) if isinstance(link, Link) else ({}, link)
    links = {**custom, **_LINKS}
    controls = {
        "operation": choice("operation", operation, OPERATIONS),
        "link": choice("link", name, list(links)),
        "ranks": powers_of_two("ranks", ranks, 2, 1024),
        "size_kib": powers_of_two("size", size_kib, 1, 4 * 2**20, "KiB"),
        "tree": choice("kind of tree", tree, {"one tree": "tree", "double tree": "double-tree"}),
    }
    return Panel(controls, lambda **values: _view(links, **values))


def _view(
    links: dict[str, Link], operation: str, link: str, ranks: int, size_kib: int, tree: str
) -> View:
    result = ring_or_tree(operation, size_kib * KIB, ranks, links[link], tree=tree)
    bus, one_way = result.bus_bytes_per_s, result.link.bytes_per_s
    alpha, latency = format_seconds(result.link.latency_s), format_seconds(result.ring_latency_s)
    rows = (
        ("link", f"α {alpha}, β {format_number(one_way / 1e9)} GB/s one way"),
        ("ring, latency", f"{counted(result.ring_steps, 'step')} · α = {latency}"),
        ("ring, bytes", f"bytes / β = {format_seconds(result.ring_s - result.ring_latency_s)}"),
        ("faster here", result.tree if result.faster == "tree" else "ring"),
        (
            "bus bandwidth of the ring",
            f"{format_number(bus / 1e9)} GB/s, {bus / one_way:.0%} of the link",
        ),
    )
    return View(result, rows, lambda: figures.collective_times(result))
