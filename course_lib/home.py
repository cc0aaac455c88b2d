"""Where one is: the learner's folder or clone, and where progress is kept.

A folder made by `course start` keeps the learner's state itself, so that one installation serves
many of them: everything asks here where one is, never where the package lies.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import course_lib
from course_lib.problem import Problem

FIRST = "notebooks/00_start_here.ipynb"
RECORD = Path(".course") / "edition.json"
NEWER = "`pip install --upgrade course-lib`"


def home() -> Path:
    """COURSE_HOME, else the kept state of the folder in which one is, else that of the user."""
    if (here := folder()) and not os.environ.get("COURSE_HOME"):
        return here / RECORD.parent
    return of_the_user()


def of_the_user() -> Path:
    """COURSE_HOME, else a folder in the user's data directory."""
    if chosen := os.environ.get("COURSE_HOME"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("large-model-course"))


def package_root() -> Path:
    """The directory of `course_lib`: a clone's, or that of installed packages."""
    return Path(course_lib.__file__).resolve().parents[1]


def folder(inside: Path | None = None) -> Path | None:
    """The folder made by `course start` that is or contains `inside`; None if there is none.

    By default that of the notebook whose kernel this is, else of the working directory.
    """
    return _around(inside, RECORD)


def clone_around(inside: Path | None = None) -> Path | None:
    """The clone of the course that is or contains `inside`; None if there is none."""
    return _around(inside, Path(FIRST), Path("course_lib"))


def _around(inside: Path | None, *marks: Path) -> Path | None:
    try:
        # Jupyter names the notebook, so a cell may change the working directory.
        here = (inside or Path(os.environ.get("JPY_SESSION_NAME", ""))).resolve()
    except OSError:  # the working directory was deleted
        return None
    parents = (here, *here.parents)
    return next((each for each in parents if all((each / mark).exists() for mark in marks)), None)


def clone() -> Path | None:
    """The clone that this package runs from; None if it was installed without one."""
    return package_root() if (package_root() / FIRST).is_file() else None


def place() -> Path:
    """The learner's folder in which one is, else the clone that this package runs from.

    Raises Problem without either, and in a clone whose notebooks would run on another's package.
    """
    if here := folder():
        return here
    around, root = clone_around(), clone()
    if around and around != package_root():
        remedy = f", or `cd {root}` first" if root else ""
        raise Problem(
            f"{around} is a clone of the course, but its notebooks would run on the package in "
            f"{package_root() / 'course_lib'}: run `pip install -e .` in {around} to work "
            f"there{remedy}"
        )
    if not root:
        raise Problem(
            "no folder of the course is here: run `course start DIRECTORY` to make one, or `cd` "
            "into yours"
        )
    return root


# --- What was handed out --------------------------------------------------------------------------


class Edition(NamedTuple):
    """A folder's edition, the digest of each file that was handed out, and whether it `stays`."""

    version: str
    files: dict[str, str]
    stays: bool


def edition(root: Path) -> Edition:
    """What was handed out in a folder, by its record. Raises Problem if the record is damaged."""
    record = root / RECORD
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
        return Edition(str(data["version"]), dict(data["files"]), bool(data["stays"]))
    except FileNotFoundError:
        return Edition("", {}, False)
    except (ValueError, TypeError, KeyError):
        raise Problem(
            f"{record} is damaged: delete it and run `course start '{root}'`, which keeps what "
            "you wrote"
        ) from None


def is_ahead(version: str) -> bool:
    """Whether an edition is newer than the installed course."""
    from packaging.version import Version

    return bool(version) and Version(version) > Version(course_lib.__version__)


def other_edition() -> str:
    """One line if the folder in which one is has another edition than the package; else ""."""
    here, installed = folder(), course_lib.__version__
    if here is None or (own := edition(here)).version == installed:
        return ""
    said = f"{'stays at' if own.stays else 'has'} edition {own.version}, installed is {installed}"
    if is_ahead(own.version):
        return f"this folder {said}: run {NEWER}"
    keeps = "" if own.stays else ", `course upgrade --stay` keeps yours"
    return f"this folder {said}: `course upgrade` brings it beside what you wrote{keeps}"
