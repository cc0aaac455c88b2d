"""`course doctor`."""

import argparse
from dataclasses import asdict

from course_lib.cli.options import Answer, add_json_option

ABOUT = "say what is missing or slow on this machine"


def add_options(parser: argparse.ArgumentParser) -> None:
    """How thoroughly it looks."""
    parser.add_argument("--quick", action="store_true", help="do not start ranks")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """One line for each finding; 1 when something is missing."""
    from course_lib import doctor

    findings = doctor.examine(start_ranks=not arguments.quick)
    text = "\n".join(finding.line for finding in findings)
    missing = any(finding.status == "missing" for finding in findings)
    return Answer(text, [asdict(finding) for finding in findings], missing)
