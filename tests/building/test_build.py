import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelspec import get_kernel_dict

from course_lib.building import build, compare, notebooks
from course_lib.building.chapters import ROOMS
from course_lib.building.folders import FOLDERS
from course_lib.building.notebooks import FOLD, with_papers
from course_lib.problem import Problem
from course_lib.texts import solved, unsolved

ROOT = Path(__file__).resolve().parents[2]
DATA = """\
# %% [raw] tags=["sitting"]
# question: How many steps?
# importance: 4
# difficulty: 3
# group: alone

"""
CHAPTER = f'''\
{DATA}# %% [markdown]
# # 1 Steps and batches
# Text with × and 步.

# %%
from course_lib import expect

# %%
only_in_the_chapter = 1

# %%
only_in_the_chapter = 1

# %% tags=["exercise"]
from course_lib import check

# %% [markdown] tags=["exercise"]
# ### 1.1 Calculate: count
#
# How many?

# %% [raw] tags=["hints"]
# importance 5, difficulty 1
# Divide.

# %% tags=["exercise", "kept-tag"]
answer = ...
### BEGIN SOLUTION
answer = 125
### END SOLUTION
check("1.1", answer)

# %% [markdown] tags=["exercise"]
# ### 1.2 Implement: steps

# %% [raw] tags=["hints"]
# Round up.

# %% tags=["exercise"]
def steps(samples: int) -> int:
    """Steps."""
    ### BEGIN SOLUTION
    return samples
    ### END SOLUTION

# %% tags=["exercise"]
check("1.2", steps)
'''
CHECKS = """\
from course_lib.checking import exercise

@exercise("1.1")
def _count(answer): ...

@exercise("1.2")
def _steps(function): ...
"""
START = f"{DATA}# %% [markdown]\n# # Start here\n\n# %%\n1 + 1\n"
PLAN = "about 5 min · importance 4 of 5 · difficulty 3 of 5*"
RATED = "*importance 3 of 5 · difficulty 3 of 5 · about 10 min*"


@pytest.fixture
def root(tmp_path):
    """A small repository with two chapters."""
    text_of(tmp_path, "00_start_here").write_text(START, encoding="utf-8")
    text = text_of(tmp_path, "01_steps")
    text.write_text(CHAPTER, encoding="utf-8")
    text.with_name("exercises.py").write_text(CHECKS, encoding="utf-8")
    return tmp_path


def text_of(root, name):
    """Where the text of a chapter stands, in a room that is there."""
    room = root / ROOMS / f"ch{name}"
    room.mkdir(parents=True, exist_ok=True)
    return room / f"{name}.py"


def sources(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells]


def edit(path, change):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    change(notebook["cells"])
    path.write_text(json.dumps(notebook), encoding="utf-8")


def answer_it(cells):
    cells[-2]["source"] = ["my_own_work = 1"]


def run_it(cells):
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["execution_count"] = 7
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["ran\n"]}]
            cell["metadata"]["execution"] = {"iopub.status.busy": "now"}


def change_chapter(root):
    path = text_of(root, "01_steps")
    path.write_text(CHAPTER.replace("How many?", "How many, exactly?"), encoding="utf-8")


def snapshot(root):
    return {path: path.read_bytes() for folder in FOLDERS for path in (root / folder).rglob("*")}


# --- what is written --------------------------------------------------------------------------


def test_cells_go_where_their_tags_say(root):
    build(root)
    chapter = sources(root / "notebooks" / "01_steps.ipynb")
    exercises = sources(root / "exercises" / "01_steps.ipynb")
    solutions = sources(root / "solutions" / "01_steps.ipynb")
    assert chapter[1].startswith(f"# 1 Steps and batches\n\n*Chapter 1, Steps and batches · {PLAN}")
    assert chapter[2:-2] == [
        f"{FOLD}\nfrom course_lib import expect",
        *["only_in_the_chapter = 1"] * 2,
    ]
    assert chapter[-2].split("\n")[4:] == [
        "| 1.1 Calculate: count | 5 of 5 | 1 of 5 | 5 min |",
        "| 1.2 Implement: steps | 3 of 5 | 3 of 5 | 10 min |",
    ]
    assert exercises[2:-1] == [
        "from course_lib import check",
        "### 1.1 Calculate: count\n\n"
        "*importance 5 of 5 · difficulty 1 of 5 · about 5 min*\n\nHow many?",
        'answer = ...\ncheck("1.1", answer)',
        f"### 1.2 Implement: steps\n\n{RATED}\n",
        'def steps(samples: int) -> int:\n    """Steps."""\n    ...',
        'check("1.2", steps)',
    ]
    assert not (root / "exercises" / "00_start_here.ipynb").exists()
    assert solutions[4:7] == [
        'answer = 125\ncheck("1.1", answer)',
        f"### 1.2 Implement: steps\n\n{RATED}\n",
        'def steps(samples: int) -> int:\n    """Steps."""\n    return samples',
    ]


def test_notebooks_are_valid_without_outputs_and_routing_tags(root):
    build(root)
    for path in snapshot(root):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert path.read_bytes().endswith(b"}\n") and b"\r" not in path.read_bytes()
        assert notebook.metadata.kernelspec.name == "python3"
        # What JupyterLab would have to add, it would call unsaved work; the version it is told.
        kernel = get_kernel_dict() | {"name": "python3"}
        assert notebook.metadata.kernelspec.items() <= kernel.items()
        version = {"version": platform.python_version()}
        assert notebook.metadata.language_info | version == IPythonKernel.language_info
        for cell in notebook.cells:
            assert set(cell.metadata) <= {"tags", "jupyter"}
            assert cell.metadata.get("tags", ["kept-tag"]) == ["kept-tag"]
            if cell.cell_type == "code":
                assert cell.outputs == [] and cell.execution_count is None


def test_the_bytes_are_the_same_each_time_and_in_each_process(root, tmp_path):
    build(root)
    first = snapshot(root)
    for folder in FOLDERS:
        shutil.rmtree(root / folder)
    program = "import sys, pathlib, course_lib.building as b; b.build(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, str(root)], check=True, timeout=60)
    assert snapshot(root) == first and len(first) == 4


def test_equal_cells_have_ids_of_their_own_and_ids_follow_the_source(root):
    build(root)
    path = root / "exercises" / "01_steps.ipynb"
    before = [cell["id"] for cell in json.loads(path.read_text())["cells"]]
    change_chapter(root)
    build(root)
    after = [cell["id"] for cell in json.loads(path.read_text())["cells"]]
    assert [old == new for old, new in zip(before, after, strict=True)].count(False) == 1
    cells = json.loads((root / "notebooks" / "01_steps.ipynb").read_text())["cells"]
    assert cells[-3]["id"] == cells[-4]["id"] + "-2" and cells[-1]["id"] == cells[0]["id"] + "-2"


S, E, GIVEN = "### BEGIN SOLUTION", "### END SOLUTION", "### BEGIN GIVEN"


@pytest.mark.parametrize(
    ("source", "asked", "answered"),
    [
        *(
            (f"{line}\n{S}\nx = 1\n{E}\ncheck", f"{line}\ncheck", "x = 1\ncheck")
            for line in ("x = ...", "a, b = ..., ...", "x: int = ...", "t = [..., ...]", "...")
        ),
        *(
            (f"{line}\n    {S}\n    x\n    {E}", f"{line}\n    ...", f"{line}\n    x")
            for line in ("x = 1", "def f():", "f(...)", "# ...", "a = ...\ndef f():")
        ),
        # What is given is only in the exercise, and one place to write is enough.
        (f"{GIVEN}\nold\n### END GIVEN\n{S}\nnew\n{E}\nf()", "old\nf()", "new\nf()"),
        (f'd = {{"a": ...}}\n{S}\nd = 1\n{E}\nf()', 'd = {"a": ...}\nf()', None),
    ],
)
def test_solutions_are_cut_out_and_take_the_place_of_dots(source, asked, answered):
    assert unsolved(source) == asked
    assert answered is None or solved(source) == answered


# --- how it is walked through -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "folded"),
    [
        ("# what we need\nimport os", True),
        ("import torch\n\nlaunch.warm_up()\ntorch.set_num_threads(1)  # one", True),
        ("import torch\n\ntotal = predict('0.twice', 'How many?', yours=None)", False),
        ("import re; re.compile('')", False),
        ("torch.set_num_threads(1)", False),
        ("# nothing", False),
        ("%pip install", False),
    ],
)
def test_cells_that_only_prepare_are_folded_where_nobody_types(root, source, folded):
    for folder, tags, place in (("notebooks", "", -3), ("exercises", ' tags=["exercise"]', -2)):
        chapter = f"{CHAPTER}\n# %%{tags}\n{source}\n"
        text_of(root, "01_steps").write_text(chapter, encoding="utf-8")
        build(root)
        cell = json.loads((root / folder / "01_steps.ipynb").read_text("utf-8"))["cells"][place]
        here = folded and folder == "notebooks"
        assert ("jupyter" in cell["metadata"]) == here
        assert cell["source"][0].startswith(FOLD) == here  # all that JupyterLab shows of it


def test_a_fold_that_the_reader_opens_is_no_fault_and_one_that_build_misses_is(root, monkeypatch):
    build(root)
    path = root / "notebooks" / "01_steps.ipynb"
    edit(path, lambda cells: [cell["metadata"].clear() for cell in cells])
    assert compare(root) == []
    monkeypatch.setattr(notebooks, "folds", lambda cell: "")
    assert [o.line(root) for o in compare(root)] == [
        "stale    notebooks/01_steps.ipynb: run `course build`"
    ]


def test_every_notebook_leads_to_its_neighbours(root):
    text_of(root, "02_last").write_text(f"{DATA}# %% [markdown]\n# # 2 The last\n")
    build(root)
    lines = {path: sources(path)[0] for path in snapshot(root)}
    assert all(sources(path)[-1] == line for path, line in lines.items())
    assert lines[root / "notebooks" / "01_steps.ipynb"] == (
        "[← Start here](00_start_here.ipynb) · **chapter** · "
        "[exercises](../exercises/01_steps.ipynb) · [solutions](../solutions/01_steps.ipynb) · "
        "[2 The last →](02_last.ipynb)"
    )
    assert lines[root / "solutions" / "01_steps.ipynb"] == (
        "[← Start here](../notebooks/00_start_here.ipynb) · "
        "[chapter](../notebooks/01_steps.ipynb) · [exercises](../exercises/01_steps.ipynb) · "
        "**solutions** · [2 The last →](../notebooks/02_last.ipynb)"
    )
    assert lines[root / "notebooks" / "02_last.ipynb"] == "[← 1 Steps and batches](01_steps.ipynb)"


def test_the_numbers_of_papers_become_links_and_code_stays():
    paper = "[arXiv:1910.02054](https://arxiv.org/abs/1910.02054)"
    fenced = "```\narXiv:1910.02054\n```"
    kept = f"`arXiv:1910.02054`, ``a ` arXiv:1910.02054``, {paper}, arXiv:none\n{fenced}"
    assert with_papers(f"(arXiv:1910.02054, section 3) {kept}") == f"({paper}, section 3) {kept}"
    assert with_papers("a ` alone, arXiv:1910.02054.") == f"a ` alone, {paper}."


# --- chapters that break a rule ---------------------------------------------------------------


def _without(text, line):
    assert line in text
    return text.replace(line, "", 1)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (_without(CHAPTER, "### END SOLUTION\n"), 34, "has no end"),
        (_without(CHAPTER, "### BEGIN SOLUTION\n"), 35, "never began"),
        (CHAPTER + "### BEGIN SOLUTION\n", 54, "has no end"),
        (CHAPTER.replace("### BEGIN SOLUTION", "x ### BEGIN SOLUTION"), 34, "alone on its line"),
        (CHAPTER.replace("### END SOLUTION", "### END GIVEN"), 34, "add `### END SOLUTION`"),
        (CHAPTER.replace("only_in_the_chapter = 1", "### BEGIN GIVEN"), 15, "has no end"),
        ("x = 1\n" + CHAPTER, 1, "before the first cell"),
        (CHAPTER.replace("# %% [markdown]\n# # 1", "# %%[markdown]\n# # 1"), 7, "begins no cell"),
        (CHAPTER.replace('tags=["exercise"]\ndef', "tags=exercise\ndef"), 45, "begins no cell"),
    ],
)
def test_a_fault_gets_one_sentence_with_file_and_line(root, text, line, word):
    text_of(root, "01_steps").write_text(text, encoding="utf-8")
    with pytest.raises(Problem) as caught:
        build(root)
    assert f"01_steps.py:{line}: " in str(caught.value) and word in str(caught.value)
    assert not (root / "notebooks").exists(), "nothing is written when a chapter is at fault"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda root: text_of(root, "01_zteps").write_text(START),
            "ch01_steps has this number too",
        ),
        (
            lambda root: text_of(root, "01_steps").with_name("02_more.py").write_text(START),
            "a text is named like",
        ),
        (lambda root: text_of(root, "02_x").write_text("# %%\n1\n"), "02_x says no question"),
        (
            lambda root: text_of(root, "02_x").write_text(START.replace("4", "6")),
            "importance of 02_x must be 1 to 5",
        ),
        (
            lambda root: text_of(root, "02_x").write_text(f"{START}\n# %% [markdown]\n# [a](09)\n"),
            "a link leads to 09",
        ),
        (lambda root: shutil.rmtree(root / ROOMS), "has no chapters"),
    ],
)
def test_chapters_that_cannot_be_read_are_one_sentence(root, change, words):
    change(root)
    with pytest.raises(Problem, match=words):
        build(root)


# --- what the learner wrote -------------------------------------------------------------------


def test_running_a_notebook_is_no_edit(root):
    build(root)
    path = root / "exercises" / "01_steps.ipynb"
    edit(path, run_it)
    before = path.read_bytes()
    assert compare(root) == []
    build(root)
    assert path.read_bytes() == before, "outputs stay while the chapter is the same"
    change_chapter(root)
    build(root)
    assert "How many, exactly?" in sources(path)[3]


def states(outcomes, root):
    return {one.path.relative_to(root).as_posix(): one.state for one in outcomes}


def test_compare_names_each_fault_and_build_mends_what_nobody_edited(root):
    text_of(root, "02_gone").write_text(START)
    text_of(root, "03_gone").write_text(START)
    build(root)
    assert compare(root) == [] and {one.state for one in build(root)} == {"current"}
    (root / "solutions" / "01_steps.ipynb").unlink()
    for name in ("01_steps", "03_gone"):
        edit(root / "notebooks" / f"{name}.ipynb", answer_it)
    shutil.copy(root / "exercises" / "01_steps.ipynb", root / "exercises" / "01_copy.ipynb")
    (root / "exercises" / "05_mine.ipynb").write_text("{}")
    changed = CHAPTER.replace("kept-tag", "other-tag")
    text_of(root, "01_steps").write_text(changed, encoding="utf-8")
    for name in ("02_gone", "03_gone"):
        text_of(root, name).unlink()
    before = snapshot(root)
    assert states(compare(root), root) == {
        "solutions/01_steps.ipynb": "missing",
        "notebooks/01_steps.ipynb": "edited",
        "exercises/01_steps.ipynb": "stale",
        "notebooks/02_gone.ipynb": "surplus",
        "notebooks/03_gone.ipynb": "surplus",
    }
    texts = {one.path.name: one.text for one in compare(root)}
    assert texts["03_gone.ipynb"] == "no chapter asks for it: delete or rename what you edited"
    assert snapshot(root) == before
    build(root)
    assert states(compare(root), root) == {
        "notebooks/01_steps.ipynb": "edited",
        "notebooks/03_gone.ipynb": "surplus",
    }
    edited = before[root / "notebooks" / "01_steps.ipynb"]
    assert (root / "notebooks" / "01_steps.ipynb").read_bytes() == edited
    assert not (root / "notebooks" / "02_gone.ipynb").exists()
    assert {path.name for path in (root / "exercises").iterdir()} == {
        "01_copy.ipynb",
        "01_steps.ipynb",
        "05_mine.ipynb",
    }


def test_the_remedy_of_an_edit_ends_it(root):
    (root / ROOMS / "glossary.tsv").write_text(
        "chapter\tterm\t中文\tmeaning\t又作\n1\tstep\t步\tOne step.\n", encoding="utf-8"
    )
    build(root)
    edited = [root / "notebooks" / name for name in ("01_steps.ipynb", "glossary.ipynb")]
    for path in edited:
        edit(path, answer_it)
    assert [fault.text for fault in compare(root)] == [
        f"move the edit to {ROOMS / source}, delete this notebook, then run `course build`"
        for source in ("ch01_steps/01_steps.py", "glossary.tsv")
    ]
    for path in edited:
        path.unlink()
    build(root)
    assert compare(root) == []


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', '{"cells": [{"source": [3]}]}'])
def test_a_file_that_build_did_not_write_is_left_alone(root, text):
    path = root / "exercises" / "01_steps.ipynb"
    path.parent.mkdir()
    path.write_text(text)
    build(root)
    assert path.read_text() == text
