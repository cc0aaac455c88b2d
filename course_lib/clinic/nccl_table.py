"""The table of nccl-tests (all_reduce_perf and its siblings): time, algbw, busbw.

Format and meaning: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

import re
from dataclasses import dataclass

from course_lib.clinic.recorded import unreadable

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
