"""Reads the text of each chapter and refuses what breaks its rules."""

import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.checking.texts import MARK, Cell, cells_of
from course_lib.problem import Problem

ROOMS = Path("course_lib") / "chapters"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
GIVEN_BEGIN, GIVEN_END = "### BEGIN GIVEN", "### END GIVEN"
_PART = re.compile(r"### (BEGIN|END) (SOLUTION|GIVEN)")
_LOOKS_LIKE_A_PART = re.compile(r"#.*\b(BEGIN|END) (SOLUTION|GIVEN)")


@dataclass(frozen=True)
class Chapter:
    """One chapter file: its number, name such as "01_steps_and_batches" and cells."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return self.path.stem

    @property
    def number(self) -> int:
        """The number at the start of the file name."""
        return int(self.name[:2])

    @property
    def has_exercises(self) -> bool:
        """True when some cell is tagged `exercise`."""
        return any("exercise" in cell.tags for cell in self.cells)

    @property
    def title(self) -> str:
        """The first heading, else the name in words."""
        for cell in self.cells:
            if cell.kind == "markdown" and (match := re.search(r"^# +(.+)$", cell.source, re.M)):
                return match[1].strip()
        return self.name.replace("_", " ")


def solved_here(cell: Cell) -> bool:
    """True when the cell holds a solution, or code that only the unsolved exercise shows."""
    return cell.kind == "code" and (BEGIN in cell.source or GIVEN_BEGIN in cell.source)


def read_chapter(path: Path) -> Chapter:
    """The cells of a chapter. Raises Problem naming file and line when it breaks a rule."""
    text = path.read_text(encoding="utf-8")
    _require_marks(path, text)
    cells = tuple(cells_of(text))
    if not cells or cells[0].line > 1:
        raise Problem(f"{path}:1: text stands before the first cell: start with `# %% [markdown]`")
    return Chapter(path, cells)


def read_chapters(root: Path) -> list[Chapter]:
    """The text of each room, ch01_steps/01_steps.py, by number.

    Raises Problem for a duplicate number.
    """
    paths = sorted((root / ROOMS).glob("*/[0-9]*.py"))
    if not paths:
        raise Problem(f"{root / ROOMS} has no chapters: run this in the course's repository")
    seen: dict[str, Path] = {}
    for path in paths:
        if not re.match(r"\d\d_\w+$", path.stem):
            raise Problem(f"{path}:1: a chapter is named like 01_steps.py: rename it")
        if path.stem[:2] in seen:
            other = seen[path.stem[:2]].name
            raise Problem(f"{path}:1: {other} has number {path.stem[:2]} too: renumber one of them")
        seen[path.stem[:2]] = path
    return [read_chapter(path) for path in paths]


def _require_marks(path: Path, text: str) -> None:
    opened, kind = 0, ""
    lines = text.splitlines()
    for number, line in enumerate([*lines, "# %%"], 1):
        mark = _PART.fullmatch(line.strip())
        starts_or_differs = mark is not None and (mark[1] == "BEGIN" or mark[2] != kind)
        if line.startswith("# %%") and not MARK.fullmatch(line):
            remedy = "write `# %%`, `# %% [markdown]` or `# %% tags=[…]`"
            raise Problem(f"{path}:{number}: {line!r} begins no cell: {remedy}")
        if opened and (starts_or_differs or MARK.fullmatch(line)):
            raise Problem(f"{path}:{opened}: this part has no end: add `### END {kind}` after it")
        if mark and not opened and mark[1] == "END":
            raise Problem(f"{path}:{number}: this part never began: add `### BEGIN {mark[2]}`")
        if mark:
            opened, kind = (number, mark[2]) if mark[1] == "BEGIN" else (0, "")
        elif _LOOKS_LIKE_A_PART.search(line):
            raise Problem(f"{path}:{number}: write the mark alone on its line, such as `{BEGIN}`")
