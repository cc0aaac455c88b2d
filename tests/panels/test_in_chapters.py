"""A panel that a chapter shows belongs to the learner: no later cell depends on where it stands."""

import ast
from pathlib import Path

import pytest

CHAPTERS = sorted((Path(__file__).parents[2] / "chapters").glob("[0-9][0-9]_*.py"))


def kept(source: str) -> list[str]:
    """Names of panels and steppers that a cell of a chapter shows and later cells can read."""
    cells = [cell.partition("\n")[2] for cell in source.split("# %%")]
    return [name for cell in cells for name in _kept_by(cell)]


def _kept_by(cell: str) -> list[str]:
    lines = [line for line in cell.splitlines() if not line.startswith(("%", "!"))]
    body = ast.parse("\n".join(lines)).body
    if not (body and isinstance(body[-1], ast.Expr) and isinstance(body[-1].value, ast.Name)):
        return []
    shown = body[-1].value.id
    made = [
        ast.unparse(line.value.func).partition(".")[0]
        for line in body
        if isinstance(line, ast.Assign)
        and ast.unparse(line.targets[0]) == shown
        and isinstance(line.value, ast.Call)
    ]
    return [shown] if {"panels", "steppers"} & set(made) else []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem[:2])
def test_no_cell_can_read_a_panel_that_the_learner_has_moved(chapter):
    assert kept(chapter.read_text(encoding="utf-8")) == []


def test_a_kept_panel_is_noticed():
    cell = "# %%\npanel = panels.zero(\n    ranks=8,\n)\npanel\n"
    assert kept(cell) == ["panel"]
    assert kept("# %%\npanels.zero(ranks=8)\n# %%\nzero = panels.zero().result\n") == []
