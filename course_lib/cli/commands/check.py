"""`course check`."""

import argparse
import csv
import io
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.cli.options import Answer, add_json_option
from course_lib.problem import Problem

if TYPE_CHECKING:
    from course_lib.checking.submissions.grade import Graded
    from course_lib.checking.submissions.sandbox import Limits

ABOUT = "grade notebooks of exercises/ without changing them"
PROTECTION = (
    "Each notebook runs in processes of its own, with limits on time, memory, output and "
    "processes; it cannot change your progress nor, where Linux has Landlock, your files, and "
    "verdicts come from a process that it never ran in, so nothing that it prints or redefines "
    "counts. It is no "
    "sandbox: a submission runs with your rights, can read your files and use the network, and "
    "code that it hands in as an answer could forge the verdict on that answer, so grade "
    "strangers' work in a container or under another user."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which notebooks, within which limits, and how to print."""
    parser.description = f"{ABOUT}. {PROTECTION}"
    about = "a notebook, as it was last saved, or a folder: all notebooks in it and below"
    parser.add_argument("notebook", type=Path, nargs="+", metavar="NOTEBOOK", help=about)
    about = "seconds for each notebook (default: 300)"
    parser.add_argument("--limit-s", type=float, default=300, metavar="S", help=about)
    about = "GB of memory for each notebook and what it starts (default: 4)"
    parser.add_argument("--memory-gb", type=float, default=4, metavar="GB", help=about)
    shapes = parser.add_mutually_exclusive_group()
    add_json_option(shapes)
    about = "print CSV: file, exercise, status, reason; and a line with the total of each file"
    shapes.add_argument("--csv", action="store_true", help=about)


def run(arguments: argparse.Namespace) -> Answer | int:
    """One line for each exercise, and totals; 0 when all passed, 2 when a file was not graded."""
    from course_lib.checking.submissions.notebook import notebooks_at
    from course_lib.checking.submissions.sandbox import Limits
    from course_lib.launch.descendants import adopt_orphans

    limits = Limits(arguments.limit_s, arguments.memory_gb)
    paths = notebooks_at(arguments.notebook)
    alone = len(arguments.notebook) == 1 and paths == arguments.notebook
    adopt_orphans()
    graded = (_graded(path, limits) for path in paths)
    if alone:
        return _one(next(graded), arguments)
    if arguments.json:
        done = list(graded)
        return Answer("", [_data(each) for each in done], max(map(_code, done)))
    return _several(graded, arguments.csv)


def _graded(path: Path, limits: "Limits") -> "Graded":
    from course_lib.checking.submissions import grade
    from course_lib.launch.descendants import end_all

    try:
        return grade.grade_notebook(path, limits)
    except grade.SupervisorKilled as killed:
        end_all([])  # this process has adopted the supervisor's children, and has no others
        return grade.Graded(path, problem=str(killed))


def _one(graded: "Graded", arguments: argparse.Namespace) -> Answer:
    if graded.problem:
        raise Problem(graded.problem)
    text = _table(graded) if arguments.csv else _text(graded)
    return Answer(text, _data(graded), _code(graded))


def _several(graded: "Iterable[Graded]", as_csv: bool) -> int:
    """Print each notebook's rows as soon as it is graded, so that an interrupt loses none."""
    done = []
    for each in graded:
        done.append(each)
        if as_csv:
            print(_table(each, head=len(done) == 1), flush=True)
        else:
            print(f"{each.path}\n{_text(each)}\n", flush=True)
    if not as_csv:
        whole = sum(_code(each) == 0 for each in done)
        print(f"{whole} of {len(done)} notebooks passed all exercises")
    return max(map(_code, done))


def _code(graded: "Graded") -> int:
    return 2 if graded.problem else int(graded.passed < graded.total)


def _total(graded: "Graded") -> str:
    return graded.problem or f"{graded.passed} of {graded.total} exercises passed"


def _text(graded: "Graded") -> str:
    return "\n".join([*(row.line for row in graded.rows), _total(graded)])


def _data(graded: "Graded") -> dict[str, Any]:
    exercises = [asdict(row) for row in graded.rows]
    data = {"file": str(graded.path), "passed": graded.passed, "total": graded.total}
    return {**data, "problem": graded.problem, "exercises": exercises}


def _table(graded: "Graded", head: bool = True) -> str:
    """A notebook's rows as CSV; the last row has "total" for the exercise, and its status."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if head:
        writer.writerow(["file", "exercise", "status", "reason"])
    status = ("pass", "fail", "problem")[_code(graded)]
    rows = [(row.id, row.status, row.reason) for row in graded.rows]
    for row in [*rows, ("total", status, _total(graded))]:
        writer.writerow(map(_as_text, (str(graded.path), *row)))
    return text.getvalue().rstrip("\n")


def _as_text(value: str) -> str:
    """Escape a cell that begins like a formula, which a spreadsheet would evaluate."""
    value = " ".join(value.split())
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
