"""`course hunt`."""

import argparse
import re

ABOUT = "find a hidden fault on three real ranks, against the clock"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of the case, and `--table`."""
    about = "the case: 0 to 9 have all ten causes (default: the first that you have not found)"
    parser.add_argument("seed", type=int, nargs="?", metavar="CASE", help=about)
    parser.add_argument("--table", action="store_true", help="your best time for each cause")


def run(arguments: argparse.Namespace) -> int:
    """Show the case, ask until it is over, then run the diagnosis; exit code 1 if not solved."""
    from course_lib.chapters.ch16_cluster_clinic import hunting

    if arguments.table:
        print(hunting.table())
        return 0
    seed = hunting.next_case() if arguments.seed is None else arguments.seed
    case = hunting.hunt(seed, "Type both, such as `1 straggler`,")
    while not case.over:
        try:
            said = input("rank and cause (nothing: give up) > ")
        except EOFError:
            said = ""
        if not said.strip():
            case.give_up()
        else:
            case.answer(*_answer(said))
    print("\nNow the doctor, on the same case:", flush=True)
    case.doctor()
    return int(not case.found)


def _answer(said: str) -> tuple[int | None, str | None]:
    """Parse the rank and the cause, typed in any order and with any punctuation."""
    number = re.search(r"\d{1,9}", said)
    words = re.findall(r"[^\W\d]+", said.casefold())
    cause = " ".join(words).removeprefix("rank ")
    return int(number[0]) if number else None, cause or None
