"""Panels of chapter 14, in addition to the library's."""

from course_lib.chapters.ch14_parameter_servers import figures
from course_lib.chapters.ch14_parameter_servers.exchanges import RowExchange, ServedTraining
from course_lib.panels.controls import by_name, choice, ethernet, listed, powers_of_two
from course_lib.panels.panel import View, panel
from course_lib.theory.inputs.hardware import HDR, NDR, PCIE4
from course_lib.theory.inputs.units import format_bytes, format_number, format_seconds

_LINKS = by_name(ethernet(10), ethernet(100), HDR, PCIE4, NDR)
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


@panel
def parameter_server(
    table_rows: int = listed("table's rows", 10**9, _TABLE_ROWS),
    rows: int = listed("rows an update", 100_000, _ROWS),
    width: int = powers_of_two("width of a row", 64, 8, 1024),
    trainers: int = powers_of_two("trainers", 8, 1, 4096),
    servers: int = powers_of_two("servers", 1, 1, 64),
    compute_ms: int = listed("computing", 20, _COMPUTE_MS, "ms"),
    link: str = choice("link", HDR.name, list(_LINKS)),
) -> View:
    """Controls for `ServedTraining`; the panel's result is that and the number of table rows.

    `rows`: different rows that a trainer uses in an update. Raises ValueError for starting values
    that are not offered.
    """
    exchange = RowExchange(rows, width)
    training = ServedTraining(
        exchange, trainers, servers, compute_ms / 1000, _LINKS[link].bytes_per_s
    )
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
    return View(result, lines, lambda: figures.served_updates(training, table_rows, title))
