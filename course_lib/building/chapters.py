"""Reads and validates the chapters' texts, one for each sitting.

An exercise is a markdown cell that begins with `### 5.1 Calculate: GPT-3`, a cell of hints, and
below it code with `check("5.1", …)`. Its check function is in exercises.py in the same folder: a
heading without a check function is an error, and so is the reverse.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from course_lib.checking.exercises import Exercise, exercises_at
from course_lib.checking.submissions.notebook import CHECK_CALL
from course_lib.problem import Problem
from course_lib.sittings import Sitting, sitting_of
from course_lib.texts import BEGIN, DATA_TAGS, GIVEN_BEGIN, HEADING, MARK, Cell, cells_of

ROOMS = Path("course_lib") / "chapters"
_PART = re.compile(r"### (BEGIN|END) (SOLUTION|GIVEN)")
_LOOKS_LIKE_A_PART = re.compile(r"#.*\b(BEGIN|END) (SOLUTION|GIVEN)")


@dataclass(frozen=True)
class Text:
    """The text of one sitting, a file like "09_1_how_fsdp_works.py", and its cells."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The file name without its suffix: that of the notebook."""
        return self.path.stem

    @cached_property
    def sitting(self) -> Sitting:
        """What the text says of itself. Raises Problem if it says too little."""
        try:
            return sitting_of(self.path)
        except ValueError as error:
            raise Problem(f"{self.path}:1: {error}") from None

    @property
    def has_exercises(self) -> bool:
        """Whether a cell is tagged `exercise`."""
        return any("exercise" in cell.tags for cell in self.cells)

    @property
    def title(self) -> str:
        """The first heading, else the name with spaces."""
        for cell in self.cells:
            if cell.kind == "markdown" and (match := re.search(r"^# +(.+)$", cell.source, re.M)):
                return match[1].strip()
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Chapter:
    """One chapter's folder, named like "ch09_fsdp", and the texts in it."""

    path: Path
    texts: tuple[Text, ...]

    @property
    def name(self) -> str:
        """That of its exercises: "09_fsdp"."""
        return self.path.name.removeprefix("ch")

    @property
    def number(self) -> int:
        """The number at the start of the name."""
        return int(self.name[:2])

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all its texts."""
        return tuple(cell for text in self.texts for cell in text.cells)

    @property
    def has_exercises(self) -> bool:
        """Whether one of its texts has."""
        return any(text.has_exercises for text in self.texts)


def solved_here(cell: Cell) -> bool:
    """Whether the cell has a solution, or code that only the unsolved exercise shows."""
    return cell.kind == "code" and (BEGIN in cell.source or GIVEN_BEGIN in cell.source)


def read_text(path: Path) -> Text:
    """Read a text. Raises Problem with file and line if it breaks a rule."""
    text = path.read_text(encoding="utf-8")
    if not re.match(r"\d\d_\w+$", path.stem) or path.stem[:2] != path.parent.name[2:4]:
        raise Problem(f"{path}:1: a text is named like ch01_steps/01_1_steps.py: rename it")
    _require_marks(path, text)
    cells = tuple(cells_of(text))
    if not cells or cells[0].line > 1:
        raise Problem(f"{path}:1: text stands before the first cell: start with `# %% [markdown]`")
    return Text(path, cells)


def read_chapters(root: Path) -> list[Chapter]:
    """Read the texts in each chapter's folder, such as ch01_steps/01_1_steps.py, by number.

    Raises Problem for a duplicate number, a bad name, or a text that breaks a rule.
    """
    found: dict[str, Chapter] = {}
    for room in sorted((root / ROOMS).glob("ch*/")):
        paths = sorted(room.glob("[0-9]*.py"))
        if not paths:
            continue
        if room.name[:4] in found:
            other = found[room.name[:4]].path.name
            raise Problem(f"{room}: {other} has this number too: renumber one of them")
        found[room.name[:4]] = Chapter(room, tuple(map(read_text, paths)))
    if not found:
        raise Problem(f"{root / ROOMS} has no chapters: run this in the course's repository")
    return list(found.values())


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


# --- A chapter and its exercises ------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One exercise: its id, `file:line` of its heading, and the code cells below."""

    id: str
    where: str
    code: list[Cell] = field(default_factory=list)


def with_exercises(chapter: Chapter, root: Path) -> Chapter:
    """Validate the chapter's exercises; return it without the raw cells of data.

    Raises Problem with exercise and file if an exercise has no heading, no check or no check
    function, or if an id is used twice.
    """
    checks = (chapter.path / "exercises.py").relative_to(root)
    known = _registered(root, checks)
    parts = [part for text in chapter.texts for part in _parts(text, chapter.number)]
    _require_once([part.id for part in parts], chapter.path)
    for part in parts:
        if part.id not in known:
            remedy = f'add `@exercise("{part.id}", …)` to {checks}'
            raise Problem(f"{part.where}: exercise {part.id} has no check function: {remedy}")
        _require_check(part)
    for key in known:
        if key not in {part.id for part in parts}:
            remedy = f"add a markdown cell that begins with `### {key}`"
            raise Problem(f"{checks}: exercise {key} is missing from {chapter.path}: {remedy}")
    return replace(chapter, texts=tuple(map(_without_data, chapter.texts)))


def _without_data(text: Text) -> Text:
    return replace(text, cells=tuple(c for c in text.cells if not DATA_TAGS & {*c.tags}))


def _registered(root: Path, checks: Path) -> dict[str, Exercise]:
    try:
        exercises = exercises_at(root / checks)
    except ValueError as error:
        raise Problem(f"{checks}: {error}") from None
    _require_once([exercise.id for exercise in exercises], checks)
    return {exercise.id: exercise for exercise in exercises}


def _require_once(keys: list[str], path: Path) -> None:
    for key, count in Counter(keys).items():
        if count > 1:
            raise Problem(f"{path}: exercise {key} is there {count} times: renumber the others")


def _parts(text: Text, chapter: int) -> list[_Part]:
    """The exercises of a text, each with the code cells up to the next heading."""
    parts: list[_Part] = []
    for cell in text.cells:
        where = f"{text.path}:{cell.line}"
        if solved_here(cell) and "exercise" not in cell.tags:
            raise Problem(f'{where}: a solution outside an exercise: add tags=["exercise"]')
        if heading := _heading(cell):
            parts.append(_Part(heading[1], where))
        elif cell.kind == "code" and parts:
            parts[-1].code.append(cell)
        elif solved_here(cell) or (cell.kind == "code" and CHECK_CALL.search(cell.source)):
            remedy = f"add a markdown cell that begins with `### {chapter}.1 Calculate: `"
            raise Problem(f"{where}: this exercise has no heading: {remedy}")
    return parts


def _heading(cell: Cell) -> re.Match[str] | None:
    is_exercise = cell.kind == "markdown" and "exercise" in cell.tags
    return HEADING.match(cell.source) if is_exercise else None


def _require_check(part: _Part) -> None:
    """Raise Problem unless each solution is followed by a check with the exercise's own id."""
    checked, unchecked = 0, False
    for cell in part.code:
        if solved_here(cell) and unchecked:
            break
        unchecked = unchecked or solved_here(cell)
        for key in CHECK_CALL.findall(cell.source):
            if key != part.id:
                remedy = f'write `check("{part.id}", …)`'
                raise Problem(f"{part.where}: exercise {part.id} checks {key}: {remedy}")
            checked, unchecked = checked + 1, False
    if unchecked or not checked:
        remedy = f'add `check("{part.id}", …)` below it'
        raise Problem(f"{part.where}: exercise {part.id} has no check: {remedy}")
