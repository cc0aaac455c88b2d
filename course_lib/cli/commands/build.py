"""`course build`."""

import argparse
import sys

from course_lib import home
from course_lib.problem import Problem

ABOUT = "write the notebooks from the chapters' texts (for contributors)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Write, or only compare."""
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")


def run(arguments: argparse.Namespace) -> int:
    """Say what was written, or under --check what must be done; 1 if anything must."""
    from course_lib import building

    root = home.package_root()
    if any(root.glob("course_lib-*.dist-info")):
        raise Problem(f"{root} is no clone: `course start DIRECTORY` lays the notebooks out")
    if not arguments.check:
        outcomes = building.build(root)
        changed = [outcome for outcome in outcomes if outcome.state != "current"]
        for outcome in changed:
            print(outcome.line(root))
        print(f"{len(outcomes) - len(changed)} of {len(outcomes)} notebooks were up to date")
        return 0
    faults = building.compare(root)
    for fault in faults:
        print(fault.line(root), file=sys.stderr)
    if faults:
        count = "1 notebook does" if len(faults) == 1 else f"{len(faults)} notebooks do"
        print(f"{count} not match the chapters", file=sys.stderr)
    return 1 if faults else 0
