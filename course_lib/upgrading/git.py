"""Plain calls of git, whose refusals become a Problem with git's own line."""

import os
import subprocess
from pathlib import Path

from course_lib.problem import Problem

# Where these are set, as in a hook, git would look at another repository than the one at root.
_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def ask(root: Path, *arguments: str, apart: bool = False) -> str:
    """What git prints, without the last line end. Raises Problem where git is missing or fails.

    `apart` from the terminal, Ctrl-C does not reach git, nor can it ask for a password.
    """
    finished = _run(root, arguments, apart)
    if finished.returncode:
        raise Problem(_line(finished))
    return os.fsdecode(finished.stdout).rstrip("\n")


def names(root: Path, *arguments: str) -> list[str]:
    """The words that git prints under -z. Raises Problem as `ask` does."""
    return [word for word in ask(root, *arguments).split("\0") if word]


def agrees(root: Path, *arguments: str) -> bool:
    """Whether git ends with exit code 0. Raises Problem where git is missing."""
    return _run(root, arguments).returncode == 0


def _run(
    root: Path, arguments: tuple[str, ...], apart: bool = False
) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE}
    environment["LC_ALL"] = "C"  # one of git's sentences is read
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            env=environment,
            start_new_session=apart,
        )
    except FileNotFoundError:
        raise Problem("git is missing: install it, then run `course upgrade` again") from None


def _line(finished: subprocess.CompletedProcess[bytes]) -> str:
    """The first line that git writes, which says why; hints come after it."""
    lines = os.fsdecode(finished.stderr).strip().splitlines()
    return lines[0] if lines else f"git ended with exit code {finished.returncode}"
