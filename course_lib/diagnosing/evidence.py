"""All that is known of one launch: a record for each of its ranks, whatever is missing."""

import re
from dataclasses import dataclass

from course_lib.diagnosing.page import Line, Page

# What a rank says whose peer is gone, or did not come: look at the peer first.
FOLLOWED = re.compile(
    r"closed by peer|reset by peer|Broken pipe|caused pair closure|Read error|[Tt]imed out"
    r"|failed to pass monitoredBarrier|doesn't match expected size|another number of bytes"
    r"|waited [\d.]+ s for the others|Detected mismatch between collectives|Watchdog caught"
)


@dataclass(frozen=True)
class End:
    """How a rank ended: exit_code is None where the launch was over before, and minus a signal.

    time_up: it was ended at the time limit; stack: where it was then, the innermost line last.
    """

    exit_code: int | None = None
    returned: bool = False
    reason: str = ""
    time_up: bool = False
    stack: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Record:
    """One rank: its page, its end as the launcher saw it, its last words; any may be missing.

    crash: where its main thread was when the process was aborted, the innermost line last, `fatal`
    why, and `outside` whether a thread without Python did it, as gloo's; told: whether its launcher
    told it to end; behind_s: by how much its page is older than the newest one.
    """

    rank: int
    page: Page | None = None
    end: End | None = None
    log: str = ""
    crash: tuple[Line, ...] = ()
    fatal: str = ""
    outside: bool = False
    told: bool = False
    behind_s: float = 0.0

    @property
    def error(self) -> str:
        """What it raised, or printed last."""
        raised = self.page.error if self.page else ""
        return raised or (self.end.reason if self.end else "")

    @property
    def stack(self) -> tuple[Line, ...]:
        """Where its main thread was last, the innermost line last."""
        return self.crash or (self.page.stack if self.page else ())


@dataclass(frozen=True)
class Evidence:
    """The records by rank, and in `notes` what could not be read."""

    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pages(self) -> int:
        """How many ranks left a page."""
        return sum(record.page is not None for record in self.records)
