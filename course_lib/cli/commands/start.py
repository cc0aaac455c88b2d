"""`course start`."""

import argparse
from pathlib import Path

ABOUT = "lay out the notebooks in a folder of yours, or a new edition beside what you wrote"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where, and with or without the solutions."""
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="a new one, or yours")
    which = parser.add_mutually_exclusive_group()
    abouts = {
        "--with-solutions": "with solutions/ (default: as before, at first with them)",
        "--without-solutions": "without solutions/, to which links then lead nowhere",
    }
    for name, about in abouts.items():
        chosen = name == "--with-solutions"
        which.add_argument(name, action="store_const", const=chosen, dest="solutions", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Say what was laid out, or what is new."""
    from course_lib.starting import start

    print("\n".join(start(arguments.directory, arguments.solutions)))
    return 0
