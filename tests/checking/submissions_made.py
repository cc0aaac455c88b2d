"""Notebooks as they may be handed in, good, bad and hostile, and what grading each must say.

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
SHORT_S = 10  # for those that never end


@dataclass(frozen=True)
class Made:
    """One file, and what is expected: `others` for each exercise that `rows` does not name.

    `rows` has (status, a part of the reason) by id; `problem` is a part of the sentence where
    nothing can be graded. `limits` are arguments of Limits.
    """

    write: Callable[[Path], object]
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    others: tuple[str, str] = ("pass", "")
    problem: str = ""
    limits: dict[str, float] = field(default_factory=dict)
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


def with_answer(key: str, source: str) -> Callable[[Path], object]:
    """The solutions with other code for one exercise."""
    place = IDS.index(key) + 1
    return notebook([*SOLVED[:place], source, *SOLVED[place + 1 :]])


def text(said: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(said)


def rows(keys: list[str], status: str, reason: str = "") -> dict[str, tuple[str, str]]:
    return dict.fromkeys(keys, (status, reason))


LATE = f"ended because it took longer than {SHORT_S} s"
SHORT = {"seconds": SHORT_S}
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
    "half": Made(notebook(SOLVED[:6]), rows(IDS[5:], "missing", "no cell calls check(")),
    "no_cells": Made(notebook([]), others=("missing", "no cell calls check(")),
    "one_wrong": Made(with_answer("5.7", 'check("5.7", 0.1)'), rows(["5.7"], "fail", "gave 0.1")),
    "kernel_unknown": Made(notebook(SOLVED, {"kernelspec": {"name": "none", "language": "R"}})),
    "what_notebooks_use": Made(
        with_cell(
            1,
            "%matplotlib inline\n%time 1\nimport asyncio\nawait asyncio.sleep(0)\n"
            "from IPython.display import Markdown, display\n"
            "from course_lib import panels, predict, quiz\n"
            "display(Markdown('x'), panels.memory())\nhint('5.1')\n"
            "predict('k', 'q?', yours=2)\n!true\nquiz('5')",
        )
    ),
    "last_counts": Made(
        notebook([*SOLVED, "for guess in range(30): check('5.10', guess)"]),
        rows(["5.10"], "fail"),
    ),
    # --- errors
    "syntax": Made(
        with_answer("5.7", 'mfu = = 1\ncheck("5.7", mfu)'),
        rows(["5.7"], "stopped", "its cell stopped with SyntaxError"),
    ),
    "error": Made(
        with_answer("5.7", 'nothing_here\ncheck("5.7", 1)'),
        rows(["5.7"], "stopped", "its cell stopped with NameError: name 'nothing_here'"),
    ),
    "sys_exit": Made(
        with_answer("5.7", 'import sys\nsys.exit(0)\ncheck("5.7", 1)'),
        rows(["5.7"], "stopped", "its cell stopped with SystemExit"),
    ),
    "os_exit": Made(
        with_cell(7, "import os\nos._exit(0)"),
        rows(IDS[6:], "stopped", "ended because its process ended (exit code 0)"),
    ),
    "os_exit_at_the_end": Made(notebook([*SOLVED, "import os\nos._exit(3)"])),
    "crash": Made(
        with_cell(7, "import ctypes\nctypes.string_at(0)"),
        rows(IDS[6:], "stopped", "ended because its process ended (signal 11)"),
    ),
    # --- forgery
    "own_check": Made(
        with_cell(1, "def check(key, answer): print(f'[pass] {key} x')"),
        others=("stopped", "handed no answer"),
    ),
    "patched_exercise": Made(
        with_answer(
            "5.7",
            "from course_lib.checking import exercises, grading\n"
            "for exercise in exercises.exercises_of(5):\n"
            "    object.__setattr__(exercise, 'check', lambda answer: None)\n"
            "grading.grade = None\ncheck('5.7', 0.1)",
        ),
        rows(["5.7"], "fail", "gave 0.1"),
    ),
    "patched_builtins": Made(
        with_answer(
            "5.7",
            "import builtins\ncheck('5.7', 0.1)\nbuiltins.abs = lambda value: 0\n"
            "builtins.isinstance = lambda *_: True",
        ),
        rows(["5.7"], "fail", "gave 0.1") | rows(IDS[7:], "any"),
    ),
    "lying_eq": Made(
        with_answer("5.8", LIAR % "tuple" + "check('5.8', Liar((1, 2, 3)))"),
        rows(["5.8"], "fail", "gave"),
    ),
    "lying_class": Made(
        with_answer(
            "5.7", LIAR % "object" + "    __class__ = property(lambda _: float)\n"
            "    __abs__ = __sub__ = __rsub__ = lambda *_: 0\ncheck('5.7', Liar())"
        ),
        rows(["5.7"], "fail", "wants"),
    ),
    "lying_result": Made(
        with_answer("5.9", LIAR % "float" + "check('5.9', lambda *_: Liar(1))"),
        rows(["5.9"], "fail", "gave 1"),
    ),
    "code_as_data": Made(
        with_answer(
            "5.1",
            AT_REBUILDING.format(
                key="5.1",
                code="import os\nfor fd in range(3, 99):\n try: os.write(fd, "
                'b\'{"status": "pass"}\\n\')\n except OSError: pass',
            ),
        ),
        rows(["5.1"], "fail", "wants numbers or texts"),
    ),
    # --- answers
    "huge_answer": Made(
        with_answer("5.7", "check('5.7', bytes(70_000_000))"),
        rows(["5.7"], "fail", "cannot be handed over: TooLarge"),
    ),
    "fails_to_rebuild": Made(
        with_answer("5.4", AT_REBUILDING.format(key="5.4", code="1 / 0")),
        rows(["5.4"], "fail", "the answer cannot be rebuilt: ZeroDivisionError"),
    ),
    "rebuilds_forever": Made(
        with_answer("5.4", AT_REBUILDING.format(key="5.4", code="while True: pass")),
        rows(["5.4"], "stopped", "judging it took longer than 4 s"),
        limits=SHORT,
    ),
    "ends_the_grader": Made(
        with_answer("5.4", "import os\ncheck('5.4', lambda *_: os._exit(0))"),
        rows(["5.4"], "stopped", "judging the answer ended its process (exit code 0)"),
    ),
    "kills_the_grader": Made(
        with_answer("5.4", "import os\ncheck('5.4', lambda *_: os.kill(os.getppid(), 9))"),
        rows(["5.4"], "fail", "PermissionError"),
        fenced=True,
    ),
    "escapes_from_the_grader": Made(
        with_answer("5.4", f"def stack_flop(*_):\n    exec({ESCAPE!r})\ncheck('5.4', stack_flop)"),
        rows(["5.4"], "todo"),
    ),
    "fork_bomb_in_the_grader": Made(
        with_answer(
            "5.4",
            "import os\ndef stack_flop(*_):\n    while True: os.fork()\ncheck('5.4', stack_flop)",
        ),
        rows(["5.4"], "stopped", "judging it started more than 30 processes"),
        limits={"processes": 30},
    ),
    "memory_in_the_grader": Made(
        with_answer("5.4", "check('5.4', lambda *_: b'x' * 10**10)"),
        rows(["5.4"], "fail", "MemoryError"),
    ),
    "colours": Made(
        with_answer("5.7", "raise ValueError('\033[32m[pass]\\n5.7')\ncheck('5.7', 1)"),
        rows(["5.7"], "stopped", "its cell stopped with ValueError:  [32m[pass] 5.7"),
    ),
    "tells_rubbish": Made(
        with_cell(
            7,
            "import os\nfrom course_lib.checking.submissions.answers import tell\n"
            "with open(os.path.join(os.environ['COURSE_GRADING'], 'told'), 'wb') as pipe:\n"
            "    pipe.write(b'x' * 1_000_000 + b'\\n[]\\n{\"ends\": \"x\"}\\n')\n"
            "tell(id='5.7', status='pass')\ntell(id='5.8', answer='../../etc/passwd')",
        )
    ),
    # --- time
    "endless": Made(
        with_answer("5.7", "while True: pass\ncheck('5.7', 1)"),
        rows(["5.7"], "stopped", "its cell ran longer than 4 s"),
        limits=SHORT,
    ),
    "endless_at_the_end": Made(notebook([*SOLVED, "while True: pass"]), limits=SHORT),
    "swallows_interrupts": Made(
        with_cell(
            7,
            "import time\nwhile True:\n    try: time.sleep(1)\n    except KeyboardInterrupt: pass",
        ),
        rows(IDS[6:], "stopped", LATE),
        limits=SHORT,
    ),
    "endless_thread": Made(
        with_cell(
            7, "import threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()"
        )
    ),
    "stops_itself": Made(
        with_cell(7, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
        rows(IDS[6:], "stopped", LATE),
        limits=SHORT,
    ),
    # --- processes
    "escapes": Made(with_cell(7, ESCAPE)),
    "fork_bomb_that_escapes": Made(
        with_cell(
            7,
            "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        os.setsid()\n"
            "        os.fork()\n        time.sleep(600)\ntime.sleep(600)",
        ),
        rows(IDS[6:], "stopped", "ended because it started more than 30 processes"),
        limits={"processes": 30},
    ),
    "kills_the_supervisor": Made(
        with_cell(7, "import os\nos.kill(os.getppid(), 9)"),
        fenced=True,
    ),
    # --- memory and output
    "memory": Made(
        with_answer("5.7", "much = b'x' * 10**10\ncheck('5.7', 1)"),
        rows(["5.7"], "stopped", "its cell stopped with MemoryError"),
    ),
    "memory_of_many": Made(
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
    # --- files
    "writes_progress": Made(
        with_cell(
            1,
            "from course_lib.checking import progress\n"
            "progress.update('exercises', '5.1', lambda record: record.update(forged=1))\n"
            "import os\nos.environ.pop('COURSE_HOME')\n"
            "progress.update('exercises', '5.1', lambda record: record.update(forged=1))\n"
        )
    ),
    "writes_everywhere": Made(
        with_answer(
            "5.7",
            "from pathlib import Path\nimport course_lib\n"
            "(Path(course_lib.__file__).parent / 'made_by_a_submission').touch()\n"
            "check('5.7', 1)",
        ),
        rows(["5.7"], "stopped", "its cell stopped with PermissionError"),
        fenced=True,
    ),
    "only_json": Made(text(b'{"cells": 3}'), problem="is not a notebook"),
    "deep_json": Made(text(b"[" * 100_000), problem="is not a notebook"),
    "no_exercises": Made(notebook(["1 + 1"], {}), problem="has no call such as check("),
    "folder": Made(lambda path: path.mkdir(), problem="is not a notebook"),
    "dead_link": Made(lambda path: path.symlink_to("nowhere"), problem="does not exist"),
}  # fmt: skip


def write_all(folder: Path) -> None:
    """Each as NAME.ipynb."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in MADE.items():
        made.write(folder / f"{name}.ipynb")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
    print(len(os.listdir(sys.argv[1])))
