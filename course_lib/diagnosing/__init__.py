"""The hang doctor: from the records that ranks left to one sentence. Needs nothing but Python.

    reading ──> evidence ──> standing ──> causes ──> one finding
    (files)     (by rank)    (who waits   (each: a finding with
                              for whom)    its reasons, or None)

    print(diagnosing.diagnose("here").report())

A rank is accused only if the record shows it: it ended by itself, it stands in its own code while
others wait for it, or most of the others agree against it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.diagnosing.judging import Diagnosis


def diagnose(folder: Path | str) -> Diagnosis:
    """What the records in the folder say. Raises OSError where the folder cannot be read."""
    # Every rank loads this package for the form of its page, and no rank needs the doctor.
    from course_lib.diagnosing import judging, reading

    return judging.diagnose(reading.read(Path(folder)))
