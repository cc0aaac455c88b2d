"""Which folder is the course's: the one with the package, and the one where you stand."""

from pathlib import Path

import course_lib
from course_lib.problem import Problem

FIRST = "notebooks/00_start_here.ipynb"


def repository() -> Path:
    """The folder that holds notebooks/ beside this package.

    Raises Problem when the package was installed without the repository, and when this process
    works in another clone of the course: its notebooks would run on this package.
    """
    root = Path(course_lib.__file__).resolve().parents[1]
    here = clone_around(Path.cwd())
    if here is not None and here != root:
        remedy = f"run `pip install -e .` in {here} to work there"
        remedy += f", or `cd {root}` first" if (root / FIRST).is_file() else ""
        raise Problem(
            f"{here} is a clone of the course, but its notebooks would run on the package in "
            f"{root / 'course_lib'}: {remedy}"
        )
    if not (root / FIRST).is_file():
        raise Problem(
            f"the notebooks are not beside the package in {root}: clone the repository and run "
            "`pip install -e .` in it"
        )
    return root


def clone_around(folder: Path) -> Path | None:
    """The clone of the course that `folder` is or lies in; None where there is none."""
    folder = folder.resolve()
    return next((each for each in (folder, *folder.parents) if _is_clone(each)), None)


def _is_clone(folder: Path) -> bool:
    return (folder / FIRST).is_file() and (folder / "course_lib").is_dir()
