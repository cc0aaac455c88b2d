"""Finds and reads notebooks: their code cells, and the exercises that they are for."""

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

# The id in a call such as check("1.1", answer), unless it is in a comment.
CHECK_CALL = re.compile(r"""^[^#\n]*\bcheck\(\s*["'](\d+\.\d+)["']""", re.M)
_LARGEST_BYTES = 64 * 2**20
_NUMBER = re.compile(r"(\d{1,2})_")


@dataclass(frozen=True)
class Notebook:
    """The code cells in order, and all exercises of the chapters that the notebook is for."""

    cells: tuple[str, ...]
    exercises: tuple[Exercise, ...]

    @property
    def judged_by_torch(self) -> bool:
        """Whether the checks of these exercises use torch, as those of builds always do."""
        checks = {sys.modules[exercise.check.__module__] for exercise in self.exercises}
        builds = any(exercise.part for exercise in self.exercises)
        return builds or any("import torch" in inspect.getsource(module) for module in checks)

    def cells_with(self, exercise_id: str) -> list[int]:
        """The indices of the cells that call `check` with this id."""
        calls = (CHECK_CALL.findall(source) for source in self.cells)
        return [index for index, ids in enumerate(calls) if exercise_id in ids]


def read(path: Path) -> Notebook:
    """Read the notebook at `path`. Raises Problem: no such file, not a notebook, or no chapter.

    Its chapters are those whose exercises it checks and the one that it was built from, according
    to its metadata; without either, the one at the start of its file name.
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
    match = _NUMBER.match(name) if isinstance(name, str) else None
    return {int(match[1])} if match else set()


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
    """Whether it has the parts used here, in the format of nbformat 4.0 and later."""
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
    """The files in `paths`, and all .ipynb files in its folders, recursively; without duplicates.

    Hidden files in folders are left out. Raises Problem for a path that does not exist and for a
    folder without notebooks.
    """
    return list(dict.fromkeys(found for path in paths for found in _at(path)))


def _at(path: Path) -> list[Path]:
    if not path.exists():
        raise Problem(f"{path} does not exist: give notebooks such as exercises/01_….ipynb")
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.rglob("*.ipynb") if not _hidden(each.relative_to(path)))
    if not files:
        raise Problem(f"{path} is a folder without notebooks: give one with .ipynb files in it")
    return files


def _hidden(path: Path) -> bool:
    """Whether a component of the path begins with a dot, such as .ipynb_checkpoints."""
    return any(part.startswith(".") for part in path.parts)
