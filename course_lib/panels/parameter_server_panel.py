"""The panel of chapter 14: parameter servers, their links, and an all-reduced table beside them."""

from course_lib.figures.servers import servers as figure
from course_lib.panels.controls import choice, listed, powers_of_two
from course_lib.panels.panel import Panel, View
from course_lib.theory.inputs.hardware import HDR, NDR, PCIE4, Link
from course_lib.theory.inputs.units import format_bytes, format_number, format_seconds
from course_lib.theory.network.served import ServedTraining
from course_lib.theory.network.sparse import RowExchange

_LINKS = {
    link.name: link.bytes_per_s
    for link in (
        Link("Ethernet 10 Gb/s", 1.25e9, 50e-6),
        Link("Ethernet 100 Gb/s", 12.5e9, 50e-6),
        HDR,
        PCIE4,
        NDR,
    )
}
_TABLE_ROWS = {
    f"{rows / 10**scale:g} {word}": rows
    for rows, scale, word in (
        (10**5, 3, "thousand"),
        (10**6, 6, "million"),
        (10**7, 6, "million"),
        (10**8, 6, "million"),
        (10**9, 9, "billion"),
        (10**10, 9, "billion"),
    )
}
_ROWS = {f"{rows:,}": rows for rows in (100, 1000, 10_000, 20_000, 50_000, 100_000)}
_COMPUTE_MS = {f"{ms}": ms for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)}


def parameter_server(
    table_rows: int = 10**9,
    rows: int = 100_000,
    width: int = 64,
    trainers: int = 8,
    servers: int = 1,
    link: str = HDR.name,
    compute_ms: int = 20,
) -> Panel:
    """Controls for `ServedTraining`; the panel's result is that and the rows of the table.

    `rows`: different ones that a trainer uses in an update. Raises ValueError for starting values
    that are not offered.
    """
    controls = {
        "table_rows": listed("table's rows", table_rows, _TABLE_ROWS),
        "rows": listed("rows an update", rows, _ROWS),
        "width": powers_of_two("width of a row", width, 8, 1024),
        "trainers": powers_of_two("trainers", trainers, 1, 4096),
        "servers": powers_of_two("servers", servers, 1, 64),
        "compute_ms": listed("computing", compute_ms, _COMPUTE_MS, "ms"),
        "link": choice("link", link, list(_LINKS)),
    }
    return Panel(controls, _view)


def _view(
    table_rows: int,
    rows: int,
    width: int,
    trainers: int,
    servers: int,
    compute_ms: int,
    link: str,
) -> View:
    exchange = RowExchange(rows, width)
    training = ServedTraining(exchange, trainers, servers, compute_ms / 1000, _LINKS[link])
    seconds = exchange.total_bytes / training.bytes_per_s
    crowd = max(1.0, trainers / servers)
    table_bytes = table_rows * width * exchange.element_bytes
    lines = (
        ("the table", f"{format_bytes(table_bytes)} in fp32"),
        (
            "a trainer exchanges",
            f"{format_bytes(exchange.total_bytes)} in an update, "
            f"{format_seconds(seconds)} on {link}",
        ),
        ("a server exchanges", f"{format_bytes(training.served_bytes)} in an update of all"),
        (
            "in step",
            f"{compute_ms} ms + {format_number(crowd, 4)} · {format_seconds(seconds)} = "
            f"{format_seconds(training.in_step_s)}: {format_number(training.speed_up_in_step)} "
            "times as fast as one trainer",
        ),
        (
            "as they come",
            f"{format_seconds(training.as_they_come_s)}: {format_number(training.speed_up)} times "
            "as fast, with any number of trainers at most "
            f"{format_number(training.saturating_trainers)}",
        ),
    )
    result = (training, table_rows)
    title = f"{rows:,} of {table_rows:,} rows of {width}, {link}"
    return View(result, lines, lambda: figure.served_updates(training, table_rows, title))
