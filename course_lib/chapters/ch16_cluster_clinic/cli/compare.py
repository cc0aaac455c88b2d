"""`course compare`."""

import argparse
from dataclasses import asdict
from pathlib import Path

from course_lib.cli.options import Answer, add_json_option

ABOUT = "say whether two recorded runs differ by a bug or by rounding, and where first"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders of the two runs, and `--json`."""
    about = "the run of one process, as `course demo one_update --ranks 1 --folder ONE` has left it"
    parser.add_argument("one", type=Path, metavar="ONE", help=about)
    parser.add_argument("other", type=Path, metavar="OTHER", help="the run to be judged")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Compare the runs and report the first tensor that differs; exit code 1 if there is one."""
    from course_lib.chapters.ch16_cluster_clinic import comparing

    compared = comparing.compare(arguments.one, arguments.other)
    result = {"verdict": compared.verdict, **asdict(compared)}
    return Answer(compared.report(), result, int(compared.diverging is not None))
