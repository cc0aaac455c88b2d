"""Notebooks as they may be handed in, good, bad and hostile, and what grading each must say.

What does not disturb each other is in one notebook: to grade one starts two processes.
`python -m tests.checking.submissions_made FOLDER` writes them all.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.checking.exercises import exercises_of

ROOT = Path(__file__).parents[2]
NAME = "05_flops_roofline_mfu.ipynb"
IDS = [exercise.id for exercise in exercises_of(5)]


@dataclass(frozen=True)
class Made:
    """One file, and what is expected: `others` for each exercise that `rows` does not name.

    `rows` has (status, a part of the reason) by id; {seconds} in it are those of the notebook, and
    {cell_s} those of a cell. `limits` are arguments of Limits; `ends`: only time ends it.
    """

    write: Callable[[Path], object]
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    others: tuple[str, str] = ("pass", "")
    limits: dict[str, float] = field(default_factory=dict)
    ends: bool = True
    fenced: bool = False  # expected only where the system has Landlock


def content(folder: str = "solutions") -> dict:
    return json.loads((ROOT / folder / NAME).read_text(encoding="utf-8"))


SOLVED = ["".join(c["source"]) for c in content()["cells"] if c["cell_type"] == "code"]


def cell(source: str) -> dict:
    return {"cell_type": "code", "id": "a", "metadata": {}, "source": source, "outputs": []}


def notebook(sources: list[str], metadata: dict | None = None) -> Callable[[Path], object]:
    kept = content()["metadata"] if metadata is None else metadata
    cells = list(map(cell, sources))
    data = {"cells": cells, "metadata": kept, "nbformat": 4, "nbformat_minor": 5}
    return lambda path: path.write_text(json.dumps(data), encoding="utf-8")


def with_cell(place: int, source: str) -> Callable[[Path], object]:
    """The solutions and one cell more; place 7 is before the cell of exercise 5.7."""
    return notebook([*SOLVED[:place], source, *SOLVED[place:]])


def with_answers(answers: dict[str, str], *more: str) -> Callable[[Path], object]:
    """The solutions with other code for some exercises, and cells at the end."""
    cells = [answers.get(key, solved) for key, solved in zip(("", *IDS), SOLVED, strict=True)]
    return notebook([*cells, *more])


def rows(keys: list[str], status: str, reason: str = "") -> dict[str, tuple[str, str]]:
    return dict.fromkeys(keys, (status, reason))


LATE = "ended because it took longer than {seconds:g} s"
LIAR = """
class Liar(%s):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = None
"""
ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
FOREVER = "import time; time.sleep(600)"
AT_REBUILDING = """
class Trap:
    def __reduce__(self):
        return exec, ({code!r},)
check("{key}", Trap())
"""

MADE: dict[str, Made] = {
    "right": Made(notebook(SOLVED)),
    "unsolved": Made(
        lambda path: path.write_text(json.dumps(content("exercises")), encoding="utf-8"),
        others=("todo", "not answered yet"),
    ),
    "half, for a kernel that is not known": Made(
        notebook(SOLVED[:6], {"kernelspec": {"name": "none", "language": "R"}}),
        rows(IDS[5:], "missing", "no cell calls check("),
    ),
    "no cells": Made(notebook([]), others=("missing", "no cell calls check(")),
    "what a notebook may do": Made(
        notebook([
            SOLVED[0],
            "%matplotlib inline\n%time 1\nimport asyncio\nawait asyncio.sleep(0)\n"
            "from IPython.display import Markdown, display\n"
            "from course_lib import panels, predict, quiz\n"
            "display(Markdown('x'), panels.memory())\nhint('5.1')\n"
            "predict('k', 'q?', yours=2)\n!true\nquiz('5')",
            *SOLVED[1:7],
            # It tells rubbish, has a thread without an end, and writes into its own progress.
            "import os\nfrom course_lib.checking.submissions.answers import tell\n"
            "with open(os.path.join(os.environ['COURSE_GRADING'], 'told'), 'wb') as pipe:\n"
            "    pipe.write(b'x' * 1_000_000 + b'\\n[]\\n{\"ends\": \"x\"}\\n')\n"
            "tell(id='5.7', status='pass')\ntell(id='5.8', answer='../../etc/passwd')",
            "import threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()",
            *SOLVED[7:],
            "from course_lib.checking import progress\n"
            "progress.update('exercises', '5.1', lambda record: record.update(forged=1))\n"
            "os.environ.pop('COURSE_HOME')\n"
            "progress.update('exercises', '5.1', lambda record: record.update(forged=1))\n",
        ])
    ),
    # --- errors
    "cells that stop": Made(
        with_answers({
            "5.1": 'mfu = = 1\ncheck("5.1", mfu)',
            "5.4": "import beside\ncheck('5.4', beside.flop)",
            "5.7": "much = b'x' * 10**10\ncheck('5.7', 1)",
            "5.8": 'import sys\nsys.exit(0)\ncheck("5.8", 1)',
            "5.9": "raise ValueError('\033[32m[pass]\\n5.9')\ncheck('5.9', 1)",
        }),
        {
            "5.1": ("stopped", "its cell stopped with SyntaxError"),
            "5.4": ("fail", "gave 0"),  # by a module beside the notebook
            "5.7": ("stopped", "its cell stopped with MemoryError"),
            "5.8": ("stopped", "its cell stopped with SystemExit"),
            "5.9": ("stopped", "its cell stopped with ValueError:  [32m[pass] 5.9"),
        },
    ),
    "os exit": Made(
        with_cell(7, "import os\nos._exit(0)"),
        rows(IDS[6:], "stopped", "ended because its process ended (exit code 0)"),
    ),
    "os exit at the end": Made(notebook([*SOLVED, "import os\nos._exit(3)"])),
    "crash": Made(
        with_cell(7, "import ctypes\nctypes.string_at(0)"),
        rows(IDS[6:], "stopped", "ended because its process ended (signal 11)"),
    ),
    # --- forgery
    "own check": Made(
        with_cell(1, "def check(key, answer): print(f'[pass] {key} x')"),
        others=("stopped", "handed no answer"),
    ),
    "patched exercise": Made(
        with_answers({
            "5.7": "from course_lib.checking import exercises, grading\n"
            "for exercise in exercises.exercises_of(5):\n"
            "    object.__setattr__(exercise, 'check', lambda answer: None)\n"
            "grading.grade = None\ncheck('5.7', 0.1)",
        }),
        rows(["5.7"], "fail", "gave 0.1"),
    ),
    "patched builtins": Made(
        with_answers({
            "5.7": "import builtins\ncheck('5.7', 0.1)\nbuiltins.abs = lambda value: 0\n"
            "builtins.isinstance = lambda *_: True",
        }),
        rows(["5.7"], "fail", "gave 0.1") | rows(IDS[7:], "any"),
    ),
    "answers that lie, of which the last counts": Made(
        with_answers(
            {
                "5.1": AT_REBUILDING.format(
                    key="5.1",
                    code="import os\nfor fd in range(3, 99):\n try: os.write(fd, "
                    'b\'{"status": "pass"}\\n\')\n except OSError: pass',
                ),
                "5.4": AT_REBUILDING.format(key="5.4", code="1 / 0"),
                "5.7": LIAR % "object" + "    __class__ = property(lambda _: float)\n"
                "    __abs__ = __sub__ = __rsub__ = lambda *_: 0\ncheck('5.7', Liar())",
                "5.8": LIAR % "tuple" + "check('5.8', Liar((1, 2, 3)))",
                "5.9": LIAR % "float" + "check('5.9', lambda *_: Liar(1))",
            },
            "for guess in range(30): check('5.10', guess)",
        ),
        {
            "5.1": ("fail", "wants numbers or texts"),
            "5.4": ("fail", "the answer cannot be rebuilt: ZeroDivisionError"),
            "5.7": ("fail", "wants"),
            "5.8": ("fail", "gave"),
            "5.9": ("fail", "gave 1"),
            "5.10": ("fail", ""),
        },
    ),
    # --- answers against the grader
    "ends and fills the grader": Made(
        with_answers({
            "5.4": "import os\ncheck('5.4', lambda *_: os._exit(0))",
            "5.7": "check('5.7', bytes(70_000_000))",
            "5.9": "check('5.9', lambda *_: b'x' * 10**10)",
        }),
        {
            "5.4": ("stopped", "judging the answer ended its process (exit code 0)"),
            "5.7": ("fail", "cannot be handed over: TooLarge"),
            "5.9": ("fail", "MemoryError"),
        },
    ),
    "kills those above and writes everywhere": Made(
        with_answers({
            "5.1": f"import os\nos.kill(os.getppid(), 9)\n{SOLVED[1]}",
            "5.4": "import os\ncheck('5.4', lambda *_: os.kill(os.getppid(), 9))",
            "5.7": "from pathlib import Path\nimport course_lib\n"
            "(Path(course_lib.__file__).parent / 'made_by_a_submission').touch()\n"
            "check('5.7', 1)",
        }),
        {
            "5.1": ("stopped", "its cell stopped with PermissionError"),
            "5.4": ("fail", "PermissionError"),
            "5.7": ("stopped", "its cell stopped with PermissionError"),
        },
        fenced=True,
    ),
    "escapes from the notebook and from the grader": Made(
        with_answers({
            "5.4": f"def stack_flop(*_):\n    exec({ESCAPE!r})\ncheck('5.4', stack_flop)",
            "5.7": f"{ESCAPE}\n{SOLVED[7]}",
        }),
        rows(["5.4"], "todo"),
    ),
    # --- time
    "judging without end, a cell without end, and one at the end": Made(
        with_answers(
            {
                "5.4": AT_REBUILDING.format(key="5.4", code=FOREVER),
                "5.7": f"{FOREVER}\ncheck('5.7', 1)",
            },
            FOREVER,
        ),
        {
            "5.4": ("stopped", "judging it took longer than {cell_s:g} s"),
            "5.7": ("stopped", "its cell ran longer than {cell_s:g} s"),
        },
        ends=False,
    ),
    "swallows interrupts": Made(
        with_cell(
            7,
            "import time\nwhile True:\n    try: time.sleep(1)\n    except KeyboardInterrupt: pass",
        ),
        rows(IDS[6:], "stopped", LATE),
        ends=False,
    ),
    "stops itself": Made(
        with_cell(7, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
        rows(IDS[6:], "stopped", LATE),
        ends=False,
    ),
    # --- processes, memory and output
    "fork bombs, one in the grader": Made(
        with_answers({
            "5.4": "import os\ndef stack_flop(*_):\n    while True: os.fork()\n"
            "check('5.4', stack_flop)",
            "5.7": "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n"
            "        os.setsid()\n        os.fork()\n        time.sleep(600)\ntime.sleep(600)\n"
            "check('5.7', 1)",
        }),
        rows(["5.4"], "stopped", "judging it started more than 30 processes")
        | rows(IDS[6:], "stopped", "ended because it started more than 30 processes"),
        limits={"processes": 30},
    ),
    "memory of many": Made(
        with_cell(
            7,
            "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
            "        much = b'x' * 150_000_000\n        time.sleep(600)\ntime.sleep(600)",
        ),
        rows(IDS[6:], "stopped", "ended because it used more than 0.5 GB of memory"),
        limits={"memory_gb": 0.5},
    ),
    "output": Made(
        with_cell(7, "while True: print('x' * 10_000)"),
        rows(IDS[6:], "stopped", "ended because it printed more than 1 MiB"),
        limits={"output_mib": 1},
    ),
}  # fmt: skip

# What is no notebook of the course: how it is written, and words of the sentence.
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "only json": (lambda path: path.write_text('{"cells": 3}'), "is not a notebook"),
    "deep json": (lambda path: path.write_text("[" * 100_000), "is not a notebook"),
    "no exercises": (notebook(["1 + 1"], {}), "has no call such as check("),
    "folder": (lambda path: path.mkdir(), "is not a notebook"),
    "dead link": (lambda path: path.symlink_to("nowhere"), "does not exist"),
}


def write_all(folder: Path) -> None:
    """Each as NAME.ipynb, and the module that one of them imports."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "beside.py").write_text("def flop(widths, tokens):\n    return 0\n")
    for name, made in MADE.items():
        made.write(folder / f"{name}.ipynb")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
    print(len(os.listdir(sys.argv[1])))
