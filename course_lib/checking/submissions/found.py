"""Which notebooks are meant by files and folders."""

from collections.abc import Iterable
from pathlib import Path

from course_lib.problem import Problem


def notebooks_at(paths: Iterable[Path]) -> list[Path]:
    """The files, and all that ends in .ipynb in each folder and below, sorted; each of them once.

    What is hidden in a folder is left out. Raises Problem for a path that does not exist and for a
    folder without notebooks.
    """
    return list(dict.fromkeys(found for path in paths for found in _at(path)))


def _at(path: Path) -> list[Path]:
    if not path.exists():
        raise Problem(f"{path} does not exist: give notebooks such as exercises/01_….ipynb")
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.rglob("*.ipynb") if not _hidden(each.relative_to(path)))
    if not found:
        raise Problem(f"{path} is a folder without notebooks: give one with .ipynb files in it")
    return found


def _hidden(path: Path) -> bool:
    """Whether a part of it begins with a dot, such as Jupyter's .ipynb_checkpoints."""
    return any(part.startswith(".") for part in path.parts)
