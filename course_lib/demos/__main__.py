"""Runs a demo on this rank, alone or under torchrun: `python -m course_lib.demos ddp --steps 9`."""

import sys

from course_lib import demos
from course_lib.arguments import never_refuse

USAGE = f"usage: python -m course_lib.demos DEMO [options]; DEMO: {', '.join(demos.DEMOS)}"


def main(argv: list[str]) -> None:
    """Run the demo `argv[0]` with the options `argv[1:]`; exits the process."""
    never_refuse()
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if argv else 2)
    name, *rest = argv
    try:
        options = demos.parse(name, rest)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
    from course_lib.demos.shared.options import run_as_program  # with torch

    run_as_program(demos.load(name).main, options)


if __name__ == "__main__":
    main(sys.argv[1:])
