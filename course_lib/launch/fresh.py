"""The command line of a new Python process."""

import sys
from pathlib import Path


def fresh_python(program: str) -> list[str]:
    """A new Python that runs `program`, and finds modules where this one does."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {program}"]
