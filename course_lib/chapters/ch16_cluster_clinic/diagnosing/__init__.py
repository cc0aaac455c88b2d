"""The hang doctor: from the records that ranks left to one sentence. Needs nothing but Python.

    reading ──> evidence ──> standing ──> causes ──> one finding
    (files)     (by rank)    (who waits   (each: a finding with
                              for whom)    its reasons, or None)

    print(diagnosing.diagnose("here").report())

A rank is accused only if the record shows it: it ended by itself, it stands in its own code while
others wait for it, or most of the others agree against it.
"""

from pathlib import Path

from course_lib.chapters.ch16_cluster_clinic.diagnosing import judging, reading


def diagnose(folder: Path | str) -> judging.Diagnosis:
    """What the records in the folder say. Raises OSError where the folder cannot be read."""
    return judging.diagnose(reading.read(Path(folder)))
