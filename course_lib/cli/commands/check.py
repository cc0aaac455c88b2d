"""`course check`."""

import argparse
from dataclasses import asdict
from pathlib import Path

from course_lib.cli.answer import Answer, add_json_option

ABOUT = "grade a notebook of exercises/ without changing it"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which notebook."""
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="the notebook to grade")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """One line for each exercise, and a total; 0 when all passed."""
    from course_lib.checking.notebook import grade_notebook

    rows = grade_notebook(arguments.notebook)
    passed = sum(row.status == "pass" for row in rows)
    lines = [*(row.line for row in rows), f"{passed} of {len(rows)} exercises passed"]
    exercises = [asdict(row) for row in rows]
    data = {"passed": passed, "total": len(rows), "exercises": exercises}
    return Answer("\n".join(lines), data, passed != len(rows)).say(arguments.json)
