"""Reads and validates the chapters' texts and the glossary.

In a chapter an exercise is a markdown cell that begins with `### 5.1 Calculate: GPT-3`, a cell of
hints, and below it code with `check("5.1", …)`. Its check function is in exercises.py in the same
folder: a heading without a check function is an error, and so is the reverse. The glossary is one
table, glossary.tsv.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib.checking.exercises import Exercise, exercises_at
from course_lib.checking.submissions.notebook import CHECK_CALL
from course_lib.checking.texts import DATA_TAGS, HEADING, MARK, Cell, cells_of
from course_lib.problem import Problem

ROOMS = Path("course_lib") / "chapters"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
GIVEN_BEGIN, GIVEN_END = "### BEGIN GIVEN", "### END GIVEN"
_PART = re.compile(r"### (BEGIN|END) (SOLUTION|GIVEN)")
_LOOKS_LIKE_A_PART = re.compile(r"#.*\b(BEGIN|END) (SOLUTION|GIVEN)")


@dataclass(frozen=True)
class Chapter:
    """One chapter's file, named like "01_steps_and_batches.py", and its cells."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The file name without its suffix."""
        return self.path.stem

    @property
    def number(self) -> int:
        """The number at the start of the file name."""
        return int(self.name[:2])

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


def solved_here(cell: Cell) -> bool:
    """Whether the cell has a solution, or code that only the unsolved exercise shows."""
    return cell.kind == "code" and (BEGIN in cell.source or GIVEN_BEGIN in cell.source)


def read_chapter(path: Path) -> Chapter:
    """Read a chapter. Raises Problem with file and line if it breaks a rule."""
    text = path.read_text(encoding="utf-8")
    _require_marks(path, text)
    cells = tuple(cells_of(text))
    if not cells or cells[0].line > 1:
        raise Problem(f"{path}:1: text stands before the first cell: start with `# %% [markdown]`")
    return Chapter(path, cells)


def read_chapters(root: Path) -> list[Chapter]:
    """Read the text of each chapter's folder, such as ch01_steps/01_steps.py, by number.

    Raises Problem for a duplicate number, a bad name, or a chapter that breaks a rule.
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


# --- A chapter and its exercises ------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One exercise of a chapter: its id, `file:line` of its heading, and the code cells below."""

    id: str
    where: str
    code: list[Cell] = field(default_factory=list)


def with_exercises(chapter: Chapter, root: Path) -> Chapter:
    """Validate the chapter's exercises; return it without the cells of hints and quiz questions.

    Raises Problem with exercise and file if an exercise has no heading, no check or no check
    function, or if an id is used twice.
    """
    checks = chapter.path.with_name("exercises.py").relative_to(root)
    known = _registered(root, checks)
    parts = _parts(chapter)
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
    return replace(chapter, cells=tuple(c for c in chapter.cells if not DATA_TAGS & {*c.tags}))


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


def _parts(chapter: Chapter) -> list[_Part]:
    """The exercises of a chapter, each with the code cells up to the next heading."""
    parts: list[_Part] = []
    for cell in chapter.cells:
        where = f"{chapter.path}:{cell.line}"
        if solved_here(cell) and "exercise" not in cell.tags:
            raise Problem(f'{where}: a solution outside an exercise: add tags=["exercise"]')
        if heading := _heading(cell):
            parts.append(_Part(heading[1], where))
        elif cell.kind == "code" and parts:
            parts[-1].code.append(cell)
        elif solved_here(cell) or (cell.kind == "code" and CHECK_CALL.search(cell.source)):
            remedy = f"add a markdown cell that begins with `### {chapter.number}.1 Calculate: `"
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


# --- The glossary ---------------------------------------------------------------------------------

TABLE = ROOMS / "glossary.tsv"
_COLUMNS = ["chapter", "term", "中文", "meaning", "又作"]  # the last one is optional


@dataclass(frozen=True)
class Term:
    """One row: the chapter that introduces the term, its name in English and Chinese, its meaning.

    `also`: another Chinese name, used in the notes or elsewhere.
    """

    chapter: int
    english: str
    chinese: str
    meaning: str
    also: str = ""


def read_terms(root: Path) -> list[Term]:
    """The rows of the table, in order. Raises Problem for an incomplete row."""
    with open(root / TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if rows[:1] != [_COLUMNS]:
        raise Problem(
            f"{TABLE}:1: the columns must be {', '.join(_COLUMNS)}: correct the first line"
        )
    for number, row in enumerate(rows[1:], start=2):
        complete = len(row) in (len(_COLUMNS) - 1, len(_COLUMNS)) and all(row)
        if not complete or not row[0].isdigit():
            raise Problem(
                f"{TABLE}:{number}: write chapter, term, 中文, meaning, maybe 又作 between tabs"
            )
    return [Term(int(chapter), *rest) for chapter, *rest in rows[1:]]


def glossary(root: Path, names: dict[int, str]) -> Chapter:
    """The glossary as a chapter of one cell; `names` maps chapter numbers to notebook names."""
    lines = [
        "# Glossary (术语表)",
        "",
        "The terms of the course, with the chapter that explains them first.",
        "",
        "| term | 中文 | meaning | chapter |",
        "|---|---|---|---|",
    ]
    for term in sorted(read_terms(root), key=lambda term: term.english.casefold()):
        name = names.get(term.chapter)
        link = f"[{term.chapter}]({name}.ipynb)" if name else str(term.chapter)
        chinese = f"{term.chinese} (又作 {term.also})" if term.also else term.chinese
        lines.append(f"| {term.english} | {chinese} | {term.meaning} | {link} |")
    return Chapter(root / ROOMS / "glossary.py", (Cell("markdown", "\n".join(lines), 1),))
