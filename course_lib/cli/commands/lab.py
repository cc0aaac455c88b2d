"""`course lab`."""

import argparse
import os
from pathlib import Path

from course_lib import home
from course_lib.problem import Problem

ABOUT = "open JupyterLab at the notebook that comes next"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which folder, where it listens, and whether a browser is opened."""
    about = "a folder made by `course start` (default: the one in which you are)"
    parser.add_argument("directory", type=Path, nargs="?", metavar="DIRECTORY", help=about)
    parser.add_argument("--port", type=int, help="listen on this port instead of the next free one")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")


def run(arguments: argparse.Namespace) -> int:
    """Stay until JupyterLab ends."""
    from course_lib import lab
    from course_lib.checking import report

    if there := arguments.directory:
        root = home.folder(there) or home.clone_around(there)
        if not root:
            raise Problem(f"{there} is no folder of the course: run `course start '{there}'` first")
        os.chdir(root)
    return lab.open_lab(arguments.port, not arguments.no_browser, report.next_notebook())
