"""Finds and reads notebooks: their cells of code, and which exercises they are for."""

import inspect
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.checking.exercises import Exercise, chapters, exercises_of
from course_lib.problem import Problem

# The id in a call such as check("1.1", answer); a comment is no call.
CHECK_CALL = re.compile(r"""^[^#\n]*\bcheck\(\s*["'](\d+\.\d+)["']""", re.M)
_LARGEST_BYTES = 64 * 2**20
_NUMBER = re.compile(r"(\d{1,2})_")


@dataclass(frozen=True)
class Notebook:
    """The code cells in their order, and all exercises of the chapters they are for."""

    cells: tuple[str, ...]
    exercises: tuple[Exercise, ...]

    @property
    def judged_by_torch(self) -> bool:
        """Whether a chapter's checks use torch: those of builds always do."""
        checks = {sys.modules[exercise.check.__module__] for exercise in self.exercises}
        builds = any(exercise.part for exercise in self.exercises)
        return builds or any("import torch" in inspect.getsource(module) for module in checks)

    def cells_with(self, exercise_id: str) -> list[int]:
        """The cells, by their places in `cells`, that call `check` with this id."""
        found = (CHECK_CALL.findall(source) for source in self.cells)
        return [place for place, ids in enumerate(found) if exercise_id in ids]


def read(path: Path) -> Notebook:
    """The notebook at `path`. Raises Problem: no such file, no notebook, or of no chapter.

    It is for the chapters whose exercises it checks and for the one that it was built from, which
    its metadata name; without either, for the one that its file's name begins with.
    """
    content = _content(path)
    sources = [_source(cell) for cell in content["cells"] if cell.get("cell_type") == "code"]
    numbers = {int(key.partition(".")[0]) for each in sources for key in CHECK_CALL.findall(each)}
    numbers |= _chapter(_built_from(content))
    known = sorted((numbers or _chapter(path.name)) & set(chapters()))
    if not known:
        raise Problem(f'{path} has no call such as check("1.1", …): give a notebook of exercises/')
    return Notebook(
        tuple(sources), tuple(each for number in known for each in exercises_of(number))
    )


def _chapter(name: object) -> set[int]:
    found = _NUMBER.match(name) if isinstance(name, str) else None
    return {int(found[1])} if found else set()


def _built_from(content: dict[str, Any]) -> object:
    course = content.get("metadata", {}).get("course", {})
    return course.get("chapter") if isinstance(course, dict) else None


def _content(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise Problem(f"{path} does not exist: give a notebook such as exercises/01_….ipynb")
    not_one = Problem(f"{path} is not a notebook: give a file that Jupyter has saved as .ipynb")
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            raise not_one
        content = json.loads(path.read_bytes())
    except PermissionError:
        raise Problem(f"{path} cannot be read: ask its owner for the permission") from None
    except (OSError, ValueError, RecursionError):
        raise not_one from None
    if not isinstance(content, dict) or not _is_well_formed(content):
        raise not_one
    return content


def _is_well_formed(content: dict[str, Any]) -> bool:
    """Whether it has the parts that are used here, as formats 4.0 and later have them."""
    cells = content.get("cells")
    return (
        isinstance(content.get("metadata", {}), dict)
        and isinstance(cells, list)
        and all(isinstance(cell, dict) and _is_text(cell.get("source")) for cell in cells)
    )


def _is_text(source: object) -> bool:
    lines = source if isinstance(source, list) else [source]
    return all(isinstance(line, str) for line in lines)


def _source(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


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
