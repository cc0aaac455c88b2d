"""The hang doctor: diagnoses a hung launch from the files of its ranks. Needs only Python.

    reading ──> evidence ──> standing ──> causes ──> one finding
    (files)     (by rank)    (who waits   (each: a finding with
                              for whom)    its reasons, or None)

    print(diagnosing.diagnose("here").report())

A rank is named as the cause only if the files show it: it ended by itself, it is in its own code
while others wait for it, or it differs from a majority that agrees.
"""

from pathlib import Path

from course_lib.chapters.ch16_cluster_clinic.diagnosing import judging, reading


def diagnose(folder: Path | str) -> judging.Diagnosis:
    """Diagnose the records in `folder`. Raises OSError if the folder cannot be read."""
    return judging.diagnose(reading.read(Path(folder)))
