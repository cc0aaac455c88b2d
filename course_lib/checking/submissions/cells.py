"""The submission's process: runs the cells of a notebook in order in IPython."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from course_lib.checking.submissions.answers import GRADING, tell
from course_lib.checking.submissions.sandbox import Limits, enter_sandbox
from course_lib.launch.descendants import end_with_parent

CELLS = "cells.json"


def main(supervisor: int, limits: Limits) -> NoReturn:
    """Run the cells in the folder of this grading, then exit."""
    end_with_parent(supervisor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # sent to a cell that takes too long
    folder = Path(os.environ[GRADING])
    cells = json.loads((folder / CELLS).read_text(encoding="utf-8"))
    shell = _shell()
    sys.path.insert(0, "")
    limits.obey()
    enter_sandbox(folder)
    for index, source in enumerate(cells):
        _run(shell, index, source)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(0)  # sys.exit would wait for threads


def _run(shell: Any, index: int, source: str) -> None:
    shell.compile.get_code_name = lambda *_: cell_name(index)
    tell(begins=index)
    try:
        result = shell.run_cell(source)
        error = result.error_before_exec or result.error_in_exec
    except BaseException as raised:  # a late interrupt, or a shell that the submission broke
        error = raised
    tell(ends=index, error=f"{type(error).__name__}: {error}" if error else "")


def cell_name(index: int) -> str:
    """The file name of a cell's code."""
    return f"<cell {index}>"


def _shell() -> Any:
    """An IPython shell as in a notebook, but without history and tracebacks."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.cache_size = 0
    shell: Any = InteractiveShell.instance(config=config)
    shell.system = shell.system_raw  # which needs no terminal
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    shell.ask_exit = lambda: os._exit(0)
    return shell
