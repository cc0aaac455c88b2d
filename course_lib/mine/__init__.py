"""The learner's own library: `mine.ring_all_gather` is theirs once it is built, else the course's.

A build that passes its check is kept in the folder `mine/`, a plain Python file each. What comes
later in the course runs on these files.
"""

from typing import Any

from course_lib.mine.shelf import (
    BY_FILE,
    BY_NAME,
    PARTS,
    Part,
    borrowed,
    file_of,
    folder,
    get,
    is_mine,
    keep,
    lines,
    places,
)

__all__ = [
    "BY_FILE",
    "BY_NAME",
    "PARTS",
    "Part",
    "borrowed",
    "file_of",
    "folder",
    "get",
    "is_mine",
    "keep",
    "lines",
    "places",
]


def __getattr__(name: str) -> Any:
    if name in BY_NAME:
        return get(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *BY_NAME])
