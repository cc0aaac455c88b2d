"""The table of nccl-tests (all_reduce_perf and its siblings): time, algbw, busbw.

Format and meaning: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

import re
from dataclasses import dataclass

from course_lib.clinic.recorded import Sign, unreadable
from course_lib.validation import number

GOOD_SHARE = 0.8  # of the link that large sizes should reach; 0.9 and more on a good day
_COLUMNS = (12, 13)  # old versions have no root


@dataclass(frozen=True)
class Measured:
    """One size, out of place: one call takes `time_s`; `wrong` elements, None if not checked."""

    size_bytes: int
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    wrong: int | None


@dataclass(frozen=True)
class NcclTable:
    """A run: rows from small to large, and how many ranks its heading lists (0 if it was cut)."""

    ranks: int
    rows: tuple[Measured, ...]


def nccl_table(text: str) -> NcclTable:
    """The table, without what NCCL logs in between. Raises ValueError for a row with other columns.

    Times are printed in µs, bandwidths in GB/s of 10^9 bytes.
    """
    rows = []
    for line in text.splitlines():
        words = line.split()
        if not words or not words[0].isdigit():
            continue
        if len(words) not in _COLUMNS:
            raise unreadable("nccl-tests", line, "a row of 12 or 13 columns")
        time_us, algorithm, bus, wrong = words[-8:-4]
        try:
            times = float(time_us) / 1e6, float(algorithm) * 1e9, float(bus) * 1e9
        except ValueError:
            raise unreadable("nccl-tests", line, "time, algbw and busbw") from None
        checked = int(wrong) if wrong.isdigit() else None
        rows.append(Measured(int(words[0]), *times, checked))
    return NcclTable(len(set(re.findall(r"^#\s+Rank +(\d+) ", text, re.M))), tuple(rows))


def table_signs(table: NcclTable, link_bytes_per_s: float) -> list[Sign]:
    """Wrong results, and a bus bandwidth far below the link of one rank, one way."""
    number("link_bytes_per_s", link_bytes_per_s, above=0)
    signs = []
    if bad := [row for row in table.rows if row.wrong]:
        wrong = f"{bad[0].wrong} elements of {bad[0].size_bytes} bytes are wrong"
        do = "take the node out: a GPU, a link or the driver changes data"
        signs.append(Sign(wrong, do, "on which rank: run it on halves of the nodes"))
    best = max((row.bus_bytes_per_s for row in table.rows), default=0.0)
    if table.rows and best < GOOD_SHARE * link_bytes_per_s:
        wrong = (
            f"the best bus bandwidth is {best / 1e9:.3g} GB/s, "
            f"{best / link_bytes_per_s:.0%} of the link"
        )
        do = "test larger sizes, then halves of the nodes, until a slow pair is left"
        signs.append(Sign(wrong, do, "which link is slow: a ring runs at its slowest one"))
    return signs
