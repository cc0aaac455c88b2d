"""From the chapters' texts to notebooks/, exercises/, solutions/ and the glossary.

`chapters` reads the sources and refuses what breaks a rule, `notebooks` turns them into the text
of notebooks, `folders` writes what is missing or stale and keeps what was edited.
"""

from course_lib.building.folders import Outcome, build, compare

__all__ = ["Outcome", "build", "compare"]
