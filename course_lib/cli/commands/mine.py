"""`course mine`."""

import argparse

from course_lib.cli.options import Answer, add_json_option

ABOUT = "show the library that you have built, part by part"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Lines only, or speed and bytes as well."""
    parser.add_argument("--race", action="store_true", help="measure speed and bytes as well")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """What is built and what is left; 1 when a file cannot be loaded."""
    from course_lib.checking import races

    data = races.report(measured=arguments.race)
    broken = any(row["problem"] for row in data["parts"])
    return Answer(races.as_text(data), data, int(broken))
