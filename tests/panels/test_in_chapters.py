"""A panel of a chapter stands alone: its cell runs by itself, and no later cell depends on it."""

import ast

import pytest

from course_lib.chapters import files

CHAPTERS = list(files("[0-9][0-9]_*.py").values())


def kept(source: str) -> list[str]:
    """Names of panels and steppers that a cell of a chapter shows and later cells can read."""
    cells = [cell.partition("\n")[2] for cell in source.split("# %%")]
    return [name for cell in cells for name in _kept_by(cell)]


def _body(cell: str) -> list[ast.stmt]:
    lines = [line for line in cell.splitlines() if not line.startswith(("%", "!"))]
    return ast.parse("\n".join(lines)).body


def wanted(source: str) -> set[str]:
    """Names that cells with a panel, a stepper or a quiz want of the cells above them.

    A notebook that is opened again shows these as they were saved, and says that running the cell
    brings them back.
    """
    missing = set()
    for cell in source.split("# %%"):
        body = [] if cell.startswith(" [markdown]") else _body(cell.partition("\n")[2])
        if body and ast.unparse(body[-1]).startswith(("panels.", "steppers.", "quiz(")):
            nodes = [node for line in body for node in ast.walk(line)]
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            missing |= used - {each.name for each in nodes if isinstance(each, ast.alias)}
    return missing


def _kept_by(cell: str) -> list[str]:
    body = _body(cell)
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


# The chapter says so: this panel is about the link that the learner has just measured.
MEASURED = {"06_collectives": {"here"}}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem[:2])
def test_a_saved_panel_comes_back_by_running_its_cell(chapter):
    source = chapter.read_text(encoding="utf-8")
    assert wanted(source) == MEASURED.get(chapter.stem, set())


def test_a_panel_that_needs_another_cell_is_noticed():
    assert wanted("# %%\npanels.zero(ranks=here)\n") == {"panels", "here"}
    assert wanted("# %%\nfrom course_lib import panels\n\npanels.zero(ranks=8)\n") == set()
