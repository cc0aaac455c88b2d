"""Parser for the table of nccl-tests (all_reduce_perf and its siblings): time, algbw, busbw.

Format and meaning: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.
"""

import re
from dataclasses import dataclass

from course_lib.clinic.recorded import unreadable

_COLUMNS = (12, 13)  # old versions have no column root


@dataclass(frozen=True)
class Measured:
    """One out-of-place row: `time_s` per call; the `wrong` elements are None if not checked."""

    size_bytes: int
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    wrong: int | None


@dataclass(frozen=True)
class NcclTable:
    """One run: its rows, and the number of ranks in its heading (0 if it was cut off)."""

    ranks: int
    rows: tuple[Measured, ...]


def nccl_table(text: str) -> NcclTable:
    """Parse the table, skipping NCCL's log lines. Raises ValueError for unknown columns.

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
