"""Tells the learner's own lines from those of the library and of Python."""

import linecache
import os
import sysconfig
import traceback
from functools import cache
from pathlib import Path


def learners_line(error: Exception) -> str:
    """The last line of the learner's code that `error` came through, "" when there is none.

    Reads "line 3 of your code, `return samples // 0`".
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_learners(frame.filename):
            source = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"line {frame.lineno} of your code" + (f", `{source}`" if source else "")
    return ""


@cache
def is_learners(filename: str) -> bool:
    """Whether a file is neither of this library nor of an installed one."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [str(Path(__file__).parents[1]), *map(sysconfig.get_path, names)]
    return not filename.startswith(("<frozen", *(folder + os.sep for folder in folders)))
