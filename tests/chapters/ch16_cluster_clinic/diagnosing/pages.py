"""Records for the tests: built by hand, or real ones of three ranks of which rank 1 is broken.

records.json was recorded on one machine with torch 2.13 on gloo, 22 November 2026, and shortened:
of each kind of the demo faults, the files of its folder. Its paths are those of an invented user.
"""

import json
from dataclasses import replace
from pathlib import Path

from course_lib.chapters.ch16_cluster_clinic.diagnosing.standing import Evidence, Record
from course_lib.launch.page import NO_PAGE, Call, Line, Page

RECORDS = json.loads((Path(__file__).parent / "records.json").read_text(encoding="utf-8"))
TORCH = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def written(kind: str, folder: Path) -> Path:
    """The folder, with the recorded files of that kind."""
    for name, content in RECORDS[kind].items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def line(number: int, text: str = "", file: str = "/home/me/train.py") -> Line:
    return Line(file, number, "step", text)


def call(number: int, at: int, operation: str = "all_reduce", **more: object) -> Call:
    """The `number`-th call of the world, from line `at`, of 4 floats; it is over."""
    known = {"group": "0", "sizes": ((4,),), "dtypes": ("Float",), "over": True, "at_s": number}
    return Call(
        number=number, operation=operation, name=operation, path=(line(at),), **known | more
    )


def waiting(*calls: Call, rank: int = 0, **more: object) -> Page:
    """A page of a rank that has been in its last call for 3 s."""
    last = replace(calls[-1], over=False)
    stack = (calls[-1].path[0], Line(TORCH, 3252, calls[-1].name))
    known = {"world": 3, "still_s": 3.0, "stack": stack}
    return Page(rank=rank, calls=(*calls[:-1], last), **known | more)


def sleeping(*calls: Call, rank: int = 1, at: int = 99, **more: object) -> Page:
    """A page of a rank that has been in its own code for 3 s."""
    known = {"world": 3, "still_s": 3.0, "stack": (line(at, "time.sleep(1)"),)}
    return Page(rank=rank, calls=calls, **known | more)


def evidence(*pages: Page | None) -> Evidence:
    """Of these ranks, which are numbered anew."""
    return Evidence(
        tuple(
            Record(rank, replace(page, rank=rank, world=len(pages)) if page else NO_PAGE)
            for rank, page in enumerate(pages)
        )
    )
