"""Files of the learner that a new version would overwrite are renamed, never copied or written.

A rename needs no room on the disk, and if it is interrupted the file is whole under one name.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.building.folders import load, untouched
from course_lib.upgrading import git


@dataclass(frozen=True)
class InTheWay:
    """A file or folder that the new version would overwrite or delete.

    `edited` is false for what git holds as well and for notebooks that were only run.
    """

    path: Path
    edited: bool


@dataclass(frozen=True)
class Aside:
    """What was in the way, and the name that it has now."""

    found: InTheWay
    name: Path


def in_the_way(root: Path, changes: Mapping[str, str], new: str) -> list[InTheWay]:
    """What of the learner's stands where the commit `new` writes; changes: path → A, M, D or T."""
    edited = set(git.names(root, "diff", "--name-only", "-z", "--no-renames", "HEAD"))
    found: dict[Path, InTheWay] = {}
    for name, letter in changes.items():
        path = _standing(root, name)
        if path is None:
            continue
        if path == root / name:
            if letter == "A" or name in edited:
                found[path] = InTheWay(path, _is_edited(root, name, new))
        elif path.relative_to(root).as_posix() not in changes:
            # Where the new version has a folder, the learner has a file.
            found[path] = InTheWay(path, edited=True)
    return list(found.values())


def _standing(root: Path, name: str) -> Path | None:
    """What stands at `name`, or where one of its folders should be; None when nothing does."""
    path = root / name
    for folder in [root / parent for parent in reversed(Path(name).parents)][1:]:
        if os.path.lexists(folder) and not folder.is_dir():
            return folder
    return path if os.path.lexists(path) else None


def _is_edited(root: Path, name: str, new: str) -> bool:
    path = root / name
    if path.is_symlink() or not path.is_file():
        return True
    if path.suffix == ".ipynb" and untouched(load(path)):
        return False
    # An upgrade that was killed leaves files of the new version, which git takes for edited ones.
    blob = f"{new}:{name}"
    there = git.agrees(root, "cat-file", "-e", blob)
    return not there or git.ask(root, "rev-parse", blob) != git.ask(root, "hash-object", "--", name)


def set_aside(found: Iterable[InTheWay], moved: list[Aside]) -> None:
    """Rename each, and note each in `moved` once it is done. Raises OSError."""
    for thing in found:
        aside = Aside(thing, _free_name(thing.path))
        thing.path.rename(aside.name)
        moved.append(aside)


def put_back(moved: Iterable[Aside]) -> None:
    """Give each its name again, unless something stands there."""
    for aside in moved:
        if not os.path.lexists(aside.found.path):
            aside.name.rename(aside.found.path)


def _free_name(path: Path) -> Path:
    """NN_name_mine.ipynb, NN_name_2_mine.ipynb …; of other files name.mine, name.2.mine …"""
    number = 1
    while True:
        count = "" if number == 1 else str(number)
        if path.suffix == ".ipynb":
            target = path.with_name(f"{path.stem}{'_' * bool(count)}{count}_mine.ipynb")
        else:
            target = path.with_name(f"{path.name}{'.' * bool(count)}{count}.mine")
        if not os.path.lexists(target):
            return target
        number += 1
