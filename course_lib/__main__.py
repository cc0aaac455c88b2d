"""`python -m course_lib` runs the command `course`."""

import sys

from course_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
