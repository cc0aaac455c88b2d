"""`course upgrade`."""

import argparse

ABOUT = "bring the newest edition, beside what you wrote"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Whether to stay."""
    about = "keep the folder's edition instead, whatever is installed"
    parser.add_argument("--stay", nargs="?", const="", metavar="EDITION", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Say what is new, and where the learner's own files are."""
    from course_lib.starting import upgrade

    print("\n".join(upgrade(arguments.stay)))
    return 0
