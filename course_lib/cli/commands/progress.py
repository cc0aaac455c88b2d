"""`course progress`."""

import argparse

from course_lib.cli.options import Answer, add_json_option
from course_lib.problem import Problem

ABOUT = "show what is done"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Show, choose a route, or start over."""
    parser.add_argument("--route", help="follow evening, two-days, thread or everything")
    parser.add_argument("--reset", action="store_true", help="start over; asks first")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer | int:
    """What is done and what is left."""
    from course_lib.checking import report

    if arguments.reset:
        return _reset()
    if arguments.route:
        report.choose(arguments.route)
    data = report.summary()
    return Answer(report.as_text(data), data)


def _reset() -> int:
    from course_lib.checking import progress

    if not progress.path().exists():
        print("There is no progress yet: nothing to reset.")
        return 0
    try:
        answer = input(f"Start over and set {progress.path()} aside? Type yes: ")
    except EOFError:
        answer = ""
    if answer.strip().casefold() != "yes":
        raise Problem("nothing was reset: type yes when asked to start over")
    print(f"The old progress is kept as {progress.set_aside('reset')}.")
    return 0
