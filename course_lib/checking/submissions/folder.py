"""The folder of one grading, thrown away after it: where a submission works, and may write."""

import json
import os
import shutil
from pathlib import Path

from course_lib.checking.submissions.cells import CELLS
from course_lib.checking.submissions.handing import ANSWERS, GRADING, WORK
from course_lib.checking.submissions.notebook import Notebook

# Where programs keep things unless told otherwise: below HOME, which is thrown away as well.
_DROPPED = ("COURSE_STRICT", "JPY_SESSION_NAME", "IPYTHONDIR", "MPLCONFIGDIR")


def furnish(folder: Path, path: Path, notebook: Notebook) -> dict[str, str]:
    """Fill the folder for the notebook at `path`; the environment of its submission."""
    for name in (WORK, "home", "tmp", ANSWERS):
        (folder / name).mkdir()
    for beside in path.parent.glob("*.py"):  # the submission's own modules
        if beside.is_file():
            shutil.copy(beside, folder / WORK)
    (folder / CELLS).write_text(json.dumps(notebook.cells), encoding="utf-8")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith("XDG_")
    }
    return kept | {
        "COURSE_HOME": str(folder / "home"),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "MPLBACKEND": "agg",
        GRADING: str(folder),
    }
