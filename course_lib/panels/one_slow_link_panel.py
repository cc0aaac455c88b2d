"""The panel of chapter 16: one slow link in a ring, and who pays for it."""

from course_lib.figures.network import one_slow_link as figure
from course_lib.figures.paper.text import counted
from course_lib.panels.controls import listed, powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.hardware import HDR, Link
from course_lib.theory.inputs.units import format_number, format_seconds
from course_lib.theory.network.one_slow_link import OneSlowLink

_GBITS = {f"{gbit}": gbit for gbit in (25, 50, 100, 200, 400, 800)}
_SLOW_GBITS = {f"{gbit:g}": gbit for gbit in (1, 2.5, 10, 25, 50, 100, 200)}
_MB = {f"{mb:,}": mb for mb in (1, 4, 16, 64, 256, 1000, 4000, 16_000)}


def one_slow_link(
    ranks: int = 64,
    size_mb: int = 4000,
    link_gbit: float = 200,
    slow_gbit: float = 50,
    rings: int = 1,
) -> Panel:
    """Sliders for `OneSlowLink`, which is the panel's result. Rates as `ibstat` tells them, Gb/s.

    Raises ValueError for starting values that are not offered.
    """
    controls = {
        "ranks": powers_of_two("ranks", ranks, 2, 1024),
        "rings": powers_of_two("rings (ports)", rings, 1, 16),
        "size_mb": listed("size", size_mb, _MB, "MB"),
        "link_gbit": listed("links", link_gbit, _GBITS, "Gb/s"),
        "slow_gbit": listed("one link", slow_gbit, _SLOW_GBITS, "Gb/s"),
    }
    return Panel(controls, _view)


def _view(ranks: int, rings: int, size_mb: int, link_gbit: float, slow_gbit: float) -> View:
    link = Link(f"{link_gbit:g} Gb/s", link_gbit * 1e9 / 8, HDR.latency_s)
    result = OneSlowLink(size_mb * 1e6, ranks, link, slow_gbit * 1e9 / 8, rings)
    healthy, slow = (
        f"{format_seconds(time_s)}, bus bandwidth {format_number(bus / 1e9)} GB/s"
        for time_s, bus in (
            (result.healthy_s, result.healthy_bus_bytes_per_s),
            (result.slow_s, result.slow_bus_bytes_per_s),
        )
    )
    without = "no other ring"
    if result.without_s is not None:
        without = (
            f"{format_seconds(result.without_s)}, "
            f"{format_number(result.without_s / result.healthy_s)} times the time"
        )
    rows = (
        ("all links alike", healthy),
        ("one link slow", slow),
        ("for every rank", f"{format_number(result.factor)} times the time"),
        ("its ring left out", without),
    )
    title = f"{size_mb:,} MB over {counted(rings, 'port')} of {link_gbit:g} Gb/s in each node"
    return View(result, rows, lambda: figure.slow_ring(result, title))
