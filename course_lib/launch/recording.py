"""The parent's part of a launch's record: an empty folder before it, and how each rank ended."""

import os
import re
from pathlib import Path
from typing import Any

from course_lib.launch.job import Folder
from course_lib.launch.recorder import launch_name, write_json
from course_lib.launch.running import RunningRank
from course_lib.launch.variables import FOLDER_VARIABLE

_LAST_LINES = 40
_OURS = re.compile(r"rank\d+\.(json|log|crash|term|unfinished)|launch\.json")


def prepared(record: Path) -> dict[str, str]:
    """The variables that make the ranks write there; what an earlier launch has left is removed.

    Raises OSError where the folder cannot be made.
    """
    record.mkdir(parents=True, exist_ok=True)
    for path in record.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
    return {FOLDER_VARIABLE: str(record.absolute())}


def write_ends(record: Path, folder: Folder, ranks: list[RunningRank], timeout_s: float) -> None:
    """How each rank ended, as launch.json, and the last lines that it printed."""
    for rank in ranks:
        rank.output.show_rest()  # what is read for the record is not shown any more
    launch = {
        "launch": launch_name(str(folder.store)),
        "timeout_s": timeout_s,
        "ends": [_end(rank, folder) for rank in ranks],
    }
    write_json(record / "launch.json", launch)
    for rank in ranks:
        for path in (record / f"rank{rank.rank}.{kind}" for kind in ("crash", "term")):
            if path.exists() and not path.stat().st_size:
                path.unlink()
        words = rank.output.last_lines(_LAST_LINES)
        if words:
            (record / f"rank{rank.rank}.log").write_text(words + os.linesep, encoding="utf-8")


def _end(rank: RunningRank, folder: Folder) -> dict[str, Any]:
    """Its exit code is None where the launch was over before this rank was."""
    stack = folder.stack(rank.rank)
    return {
        "rank": rank.rank,
        "exit_code": rank.exit_code,
        "returned": rank.returned,
        "reason": rank.failure().reason if rank.failed else "",
        "stack": stack.read_text(errors="replace") if stack.exists() else "",
    }
