"""`course find`."""

import argparse

from course_lib.cli.options import Answer, add_json_option

ABOUT = "say which sections teach a word, English or Chinese"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The word."""
    parser.add_argument("word", nargs="+", help="梯度累加, reduce-scatter, a title, …")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """The sections, one a line."""
    from course_lib.finding import find

    lines = find(" ".join(arguments.word))
    return Answer("\n".join(lines), {"found": lines})
