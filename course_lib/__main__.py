"""`python -m course_lib`: the same as the command `course`."""

import sys

from course_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
