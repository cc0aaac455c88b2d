"""`course check NOTEBOOK`: runs a notebook in a fresh kernel and collects its verdict lines."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.problem import Problem

CELL_LIMIT_S = 120
# The id in a call such as check("1.1", answer); a comment is no call.
CHECK_CALL = re.compile(r"""^[^#\n]*\bcheck\(\s*["'](\d+\.\d+)["']""", re.M)
_VERDICT = re.compile(r"^\[(todo|fail|pass)\] (\d+\.\d+)\b.*$", re.M)


@dataclass(frozen=True)
class Row:
    """One exercise of a notebook: status pass, fail, todo, or stopped (no verdict was printed)."""

    id: str
    status: str
    line: str


def grade_notebook(path: Path, cell_limit_s: int = CELL_LIMIT_S) -> list[Row]:
    """Run a copy of the notebook in memory and return one row per exercise, in its order.

    Raises Problem when the file is no notebook, holds no checks, or its kernel dies.
    """
    notebook = _read(path)
    if not any(
        CHECK_CALL.search(cell.source) for cell in notebook.cells if cell.cell_type == "code"
    ):
        raise Problem(f'{path} has no call such as check("1.1", …): give a notebook of exercises/')
    _run(notebook, path, cell_limit_s)
    rows: dict[str, Row] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            rows |= _rows_of(cell)
    return list(rows.values())


def _read(path: Path) -> Any:
    import nbformat

    if not path.is_file():
        raise Problem(f"{path} does not exist: give a notebook such as exercises/01_….ipynb")
    try:
        return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except Exception:  # nbformat raises many kinds; for a learner they all mean the same
        raise Problem(f"{path} is not a notebook: give a file that ends in .ipynb") from None


def _run(notebook: Any, path: Path, cell_limit_s: int) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    # Strict mode would add errors to verdicts; the name tells the kernel whose work it runs.
    env = {**os.environ, "COURSE_STRICT": "0", "JPY_SESSION_NAME": str(path.resolve())}
    client = NotebookClient(
        notebook,
        timeout=cell_limit_s,
        allow_errors=True,
        interrupt_on_timeout=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.resolve().parent)}},
    )
    try:
        # The kernel's own log is of no use to a learner; what cells print comes by another way.
        client.execute(env=env, stderr=subprocess.DEVNULL)
    except DeadKernelError:
        raise Problem(f"the kernel of {path} died: close other programs and try again") from None


def _rows_of(cell: Any) -> dict[str, Row]:
    streams = [o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout"]
    rows = {m[2]: Row(m[2], m[1], m[0]) for m in _VERDICT.finditer("".join(streams))}
    errors = [f"{o.ename}: {o.evalue}" for o in cell.outputs if o.output_type == "error"]
    why = f"its cell stopped with {errors[0]}" if errors else "its cell printed no verdict"
    if errors and errors[0].startswith("KeyboardInterrupt"):
        why = "its cell ran longer than the time limit"
    for found in CHECK_CALL.findall(cell.source):
        line = " ".join(f"[stopped] {found}: {why}".split())
        rows.setdefault(found, Row(found, "stopped", line))
    return rows
