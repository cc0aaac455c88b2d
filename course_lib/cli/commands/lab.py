"""`course lab`."""

import argparse

ABOUT = "open JupyterLab at the notebook that comes next"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where it listens, and whether a browser is opened."""
    parser.add_argument("--port", type=int, help="listen on this port instead of the next free one")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")


def run(arguments: argparse.Namespace) -> int:
    """Stay until JupyterLab ends."""
    from course_lib import lab
    from course_lib.checking import report

    return lab.open_lab(arguments.port, not arguments.no_browser, report.next_notebook())
