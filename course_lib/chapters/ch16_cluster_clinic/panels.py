"""Panels of chapter 16."""

from course_lib.chapters.ch16_cluster_clinic import figures
from course_lib.chapters.ch16_cluster_clinic.slowest import OneSlowLink
from course_lib.figures.paper.drawing import counted
from course_lib.panels.controls import listed, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import HDR, Link
from course_lib.theory.inputs.units import format_number, format_seconds

_GBITS = {f"{gbit}": gbit for gbit in (25, 50, 100, 200, 400, 800)}
_SLOW_GBITS = {f"{gbit:g}": gbit for gbit in (1, 2.5, 10, 25, 50, 100, 200)}
_MB = {f"{mb:,}": mb for mb in (1, 4, 16, 64, 256, 1000, 4000, 16_000)}


@panel
def one_slow_link(
    ranks: int = powers_of_two("ranks", 64, 2, 1024),
    rings: int = powers_of_two("rings (ports)", 1, 1, 16),
    size_mb: int = listed("size", 4000, _MB, "MB"),
    link_gbit: float = listed("links", 200, _GBITS, "Gb/s"),
    slow_gbit: float = listed("one link", 50, _SLOW_GBITS, "Gb/s"),
) -> View:
    """Panel of an all-reduce with one slow link; its result is a `OneSlowLink`.

    Link rates are in Gb/s, as in `ibstat`. Raises ValueError for start values that are not offered.
    """
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
    return View(result, rows, lambda: figures.slow_ring(result, title))
