"""Records a program of your own for `course diagnose`, by one line:

    import course_lib.record     # anywhere in train.py, the earlier the better

    COURSE_RECORD=here torchrun --nproc-per-node=3 train.py
    COURSE_RECORD=here torchrun --nproc-per-node=3 -m course_lib.record train.py    # or without it

Each rank then writes a page to the folder `here`. Without COURSE_RECORD, a message says so.
"""

import os
import runpy
import sys

from course_lib.launch import recorder
from course_lib.launch.job import FOLDER_VARIABLE


def begin() -> None:
    """Start recording this process; rank 0 prints the folder, or how to enable recording."""
    rank = int(os.environ.get("RANK", -1))
    recorded = recorder.start(rank, int(os.environ.get("WORLD_SIZE", 0)))
    if rank <= 0:
        folder = os.environ.get(FOLDER_VARIABLE, "")
        message = (
            f"recording into {folder}: `course diagnose {folder}` reads it"
            if recorded
            else f"nothing is recorded: start it with {FOLDER_VARIABLE}=FOLDER"
        )
        print(f"course_lib.record: {message}", file=sys.stderr, flush=True)


begin()
if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(
            "python -m course_lib.record needs a program: add train.py and its options"
        )
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
