"""A room for each chapter: its text, its exercises, and all that no other chapter needs.

The library imports no chapter: it finds what it runs by looking into the rooms' folders.
"""

from pathlib import Path


def rooms() -> dict[int, str]:
    """By number: the name of each chapter's room, "course_lib.chapters.ch09_fsdp"."""
    found = {room.name for folder in __path__ for room in Path(folder).glob("ch[0-9][0-9]_*")}
    return {int(name[2:4]): f"{__name__}.{name}" for name in sorted(found)}


def files(pattern: str) -> dict[str, Path]:
    """Files in all rooms by the names of their modules, "course_lib.chapters.ch09_fsdp.figures"."""
    found = {
        ".".join((__name__, *path.relative_to(folder).with_suffix("").parts)): path
        for folder in __path__
        for path in Path(folder).glob(f"ch[0-9][0-9]_*/{pattern}")
    }
    return dict(sorted(found.items()))
