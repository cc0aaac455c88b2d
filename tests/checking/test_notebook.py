import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.checking.notebook import CELL_LIMIT_S, grade_notebook
from course_lib.problem import Problem


def _write(path, *sources):
    path.parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), path)
    return path


@pytest.fixture
def setup(chapter_folder):
    return (
        "import course_lib.checking as checking\n"
        f"checking.__path__.append({str(chapter_folder)!r})\n"
        "from course_lib import check"
    )


def test_verdicts_are_collected_and_the_notebook_is_left_alone(tmp_path, setup, home):
    path = _write(
        tmp_path / "exercises" / "90_x.ipynb",
        setup,
        "print('[pass] not a verdict')\ncheck('90.1', 124)",
        "check('90.1', 125)",
        "while True: pass\ncheck('90.2', 5)",
        "missing_name\ncheck('90.3', 1)",
        "# check('90.4', 1)\nopen('marker', 'w').close()",
        "check('90.2')",
        "if False:\n    check('90.5', 1)",
    )
    before = path.read_bytes()
    rows = grade_notebook(path, cell_limit_s=2)
    assert path.read_bytes() == before
    assert (path.parent / "marker").exists(), "the kernel runs in the notebook's folder"
    assert [(row.id, row.status) for row in rows] == [
        ("90.1", "pass"),
        ("90.2", "todo"),
        ("90.3", "stopped"),
        ("90.5", "stopped"),
    ]
    assert rows[2].line.endswith(
        "its cell stopped with NameError: name 'missing_name' is not defined"
    )
    assert "printed no verdict" in rows[3].line
    assert json.loads((home / "progress.json").read_text())["exercises"]["90.1"]["attempts"] == 2


def test_a_time_limit_ends_a_cell(tmp_path, setup):
    path = _write(tmp_path / "endless.ipynb", setup, "while True: pass\ncheck('90.1', 125)")
    rows = grade_notebook(path, cell_limit_s=1)
    assert [row.line for row in rows] == ["[stopped] 90.1: its cell ran longer than the time limit"]


def test_a_dead_kernel_gets_a_sentence(tmp_path):
    path = _write(tmp_path / "dead.ipynb", "import os\nos._exit(1)\ncheck('90.1', 1)")
    with pytest.raises(Problem, match=r"the kernel of .*dead\.ipynb died"):
        grade_notebook(path, cell_limit_s=20)


def test_a_file_that_is_no_notebook_gets_a_sentence(tmp_path):
    with pytest.raises(Problem, match="does not exist"):
        grade_notebook(tmp_path / "absent.ipynb")
    with pytest.raises(Problem, match="does not exist"):
        grade_notebook(tmp_path)
    (tmp_path / "text.ipynb").write_text("hello")
    with pytest.raises(Problem, match="is not a notebook"):
        grade_notebook(tmp_path / "text.ipynb")
    with pytest.raises(Problem, match="has no call"):
        grade_notebook(_write(tmp_path / "plain.ipynb", "1 + 1"))


def test_a_cell_has_as_long_as_when_notebooks_are_tested():
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"--nbval-cell-timeout={CELL_LIMIT_S}"' in settings
