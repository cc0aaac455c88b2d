"""`course hunt`."""

import argparse

from course_lib.problem import Problem

ABOUT = "find a hidden fault on three real ranks, against the clock"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which case, or how far you are."""
    parser.add_argument("seed", type=int, nargs="?", help="the case: 0 to 9 have all ten causes")
    parser.add_argument("--table", action="store_true", help="your best time for each cause")


def run(arguments: argparse.Namespace) -> int:
    """Show the case and ask until it is found; 1 if it was not."""
    from course_lib import hunting

    if arguments.table:
        print(hunting.table())
        return 0
    if arguments.seed is None:
        raise Problem("no case was named: give a number such as 0, or --table")
    try:
        case = hunting.hunt(arguments.seed)
    except ValueError as error:
        raise Problem(str(error)) from error
    while not case.over:
        try:
            words = input("rank and cause, such as `1 straggler` (nothing: give up) > ").split()
        except EOFError:
            words = []
        if not words:
            return 1
        rank = int(words[0]) if words[0].isdigit() else None
        case.answer(rank, " ".join(words[1:]) or None)
    return int(not case.found)
