"""Builds notebooks/, exercises/, solutions/ and the glossary from the chapters' texts.

`chapters` reads and validates the sources, `notebooks` turns them into the JSON of notebooks, and
`folders` writes missing or stale notebooks and keeps edited ones.
"""

from course_lib.building.folders import Outcome, build, compare

__all__ = ["Outcome", "build", "compare"]
