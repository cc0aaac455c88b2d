"""What a submission may use."""

import contextlib
import os
from dataclasses import dataclass

from course_lib.validation import number, whole

# The longest that a cell may run, and the longest that judging one answer may take.
CELL_LIMIT_S = 120
_CELL_PART = 0.4
MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Of one notebook: seconds in all, GB of memory, and of a few things more.

    `memory_gb` and `processes` are for all that it starts, together, and once more for judging an
    answer; `output_mib` is what it may print. Raises ValueError for a value that is not above 0.
    """

    seconds: float = 300
    memory_gb: float = 4
    output_mib: int = 16
    processes: int = 100

    def __post_init__(self) -> None:
        number("limit_s", self.seconds, above=0)
        number("memory_gb", self.memory_gb, above=0)
        for name in ("output_mib", "processes"):
            whole(name, getattr(self, name))

    @property
    def cell_s(self) -> float:
        """Seconds of one cell, or of judging one answer: one alone cannot use up all time."""
        return min(CELL_LIMIT_S, self.seconds * _CELL_PART)

    @property
    def memory_bytes(self) -> int:
        """Bytes of `memory_gb`."""
        return int(self.memory_gb * 10**9)

    def obey(self) -> None:
        """Put what the system can enforce on this process and on all that it will start."""
        import resource

        cpu_s = int(self.seconds * (os.cpu_count() or 1)) + 1  # if all who watch it were killed
        for kind, most in (
            (resource.RLIMIT_DATA, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.memory_bytes),
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_CORE, 0),
        ):
            # macOS knows some of them by name only; a lower limit of the user's own stays.
            with contextlib.suppress(OSError, ValueError):
                before = resource.getrlimit(kind)[1]
                if before == resource.RLIM_INFINITY or before > most:
                    resource.setrlimit(kind, (most, most))
