"""`course diagnose`."""

import argparse
from dataclasses import asdict
from pathlib import Path

from course_lib.cli.options import Answer, add_json_option
from course_lib.problem import Problem

ABOUT = "say which rank of a recorded launch is the cause, and where"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the record, and `--json`."""
    about = (
        "what `course demo NAME --record FOLDER`, a program with `import course_lib.record` under"
        " COURSE_RECORD=FOLDER, or torch's flight recorder has left"
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=about)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> Answer:
    """Diagnose the record, with a line for each rank; exit code 1 unless nothing is wrong."""
    from course_lib.chapters.ch16_cluster_clinic import diagnosing
    from course_lib.chapters.ch16_cluster_clinic.diagnosing.finding import HOW_TO_RECORD

    try:
        diagnosis = diagnosing.diagnose(arguments.folder)
    except OSError as error:
        raise Problem(
            f"{arguments.folder} cannot be read ({error.strerror}): give the folder of a record."
            f" {HOW_TO_RECORD}"
        ) from error
    wrong = diagnosis.finding.cause != "nothing"
    return Answer(diagnosis.report(), asdict(diagnosis), int(wrong))
