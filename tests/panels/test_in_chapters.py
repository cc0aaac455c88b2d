"""A panel of a chapter stands alone: its cell runs by itself, and no later cell depends on it."""

import ast
from collections.abc import Iterator

import pytest

from course_lib.chapters import files

CHAPTERS = list(files("[0-9][0-9]_*.py").values())
# The chapter says so: this panel is about the link that the learner has just measured.
MEASURED = {"06_1_all_reduce": {"here"}}


def code_cells(source: str) -> Iterator[list[ast.stmt]]:
    """The statements of each code cell of a chapter, without magics and commands of the shell."""
    for cell in source.split("# %%"):
        head, _, text = cell.partition("\n")
        if head != " [markdown]":
            lines = [line for line in text.splitlines() if not line.startswith(("%", "!"))]
            yield ast.parse("\n".join(lines)).body


def kept(source: str) -> list[str]:
    """Names of panels and steppers that a cell of a chapter shows and later cells can read."""
    found = []
    for body in code_cells(source):
        made = {
            ast.unparse(line.targets[0])
            for line in body
            if isinstance(line, ast.Assign)
            and ast.unparse(line.value).startswith(("panels.", "steppers."))
        }
        found += made & {ast.unparse(line) for line in body[-1:]}
    return found


def wanted(source: str) -> set[str]:
    """Names that cells with a panel, a stepper or a quiz want of the cells above them.

    A notebook that is opened again shows these as they were saved, and says that running the cell
    brings them back.
    """
    missing = set()
    for body in code_cells(source):
        if body and ast.unparse(body[-1]).startswith(("panels.", "steppers.", "quiz(")):
            nodes = [node for line in body for node in ast.walk(line)]
            used = {node.id for node in nodes if isinstance(node, ast.Name)}
            missing |= used - {each.name for each in nodes if isinstance(each, ast.alias)}
    return missing


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem[:2])
def test_a_panel_comes_back_by_running_its_cell_and_no_later_cell_reads_it(chapter):
    source = chapter.read_text(encoding="utf-8")
    assert wanted(source) == MEASURED.get(chapter.stem, set())
    assert kept(source) == [], "the learner may have moved it"


def test_a_kept_panel_and_one_that_needs_another_cell_are_noticed():
    assert kept("# %%\npanel = panels.zero(\n    ranks=8,\n)\npanel\n") == ["panel"]
    assert kept("# %%\npanels.zero(ranks=8)\n# %%\nzero = panels.zero().result\n") == []
    assert wanted("# %%\npanels.zero(ranks=here)\n") == {"panels", "here"}
    assert wanted("# %%\nfrom course_lib import panels\n\npanels.zero(ranks=8)\n") == set()
