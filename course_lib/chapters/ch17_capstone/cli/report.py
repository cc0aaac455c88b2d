"""`course report`."""

import argparse
from pathlib import Path

from course_lib.cli.options import Answer, add_json_option

ABOUT = "make the page of what you have done: predictions, measurements, gaps, plan"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the folder, the name, the measurements and the PDF."""
    about = "write it there, . for here (default: report/, beside what you have built)"
    parser.add_argument("--out", metavar="FOLDER", help=about)
    parser.add_argument("--name", default="", help="the name on the page (default: none)")
    about = "measure the parts that you have built, which takes a minute or two"
    parser.add_argument("--race", action="store_true", help=about)
    parser.add_argument("--no-pdf", action="store_true", help="HTML only")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Write the report and print its checks; exit code 0 only if all of them are "yes"."""
    from course_lib.chapters.ch17_capstone.reporting import report

    made = report(arguments.name, arguments.out, pdf=not arguments.no_pdf, race=arguments.race)
    passed = all(check.state == "yes" for check in made.checks)
    text = str(made)
    if arguments.out is None and Path.cwd() not in made.html.parents:
        text += "\nthat is beside what you have built: --out . writes it where you are"
    return Answer(text, made.data(), code=0 if passed else 1)
