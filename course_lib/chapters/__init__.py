"""One package per chapter: its text, its exercises, and the code that only it uses.

The library imports no chapter: it finds the files it runs by searching these packages' folders.
"""

from pathlib import Path


def rooms() -> dict[int, str]:
    """Map each chapter's number to its package name, such as "course_lib.chapters.ch09_fsdp"."""
    names = {room.name for folder in __path__ for room in Path(folder).glob("ch[0-9][0-9]_*")}
    return {int(name[2:4]): f"{__name__}.{name}" for name in sorted(names)}


def files(pattern: str) -> dict[str, Path]:
    """Map module names, "course_lib.chapters.ch09_fsdp.figures", to files that match `pattern`."""
    paths = {
        ".".join((__name__, *path.relative_to(folder).with_suffix("").parts)): path
        for folder in __path__
        for path in Path(folder).glob(f"ch[0-9][0-9]_*/{pattern}")
    }
    return dict(sorted(paths.items()))
