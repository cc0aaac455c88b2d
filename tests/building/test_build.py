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
from course_lib.building.chapters import ROOMS, read_chapters
from course_lib.building.folders import FOLDERS, expected
from course_lib.building.notebooks import FOLD, render, solved, unsolved, with_papers
from course_lib.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = '''\
# %% [markdown]
# # 1 Steps and batches
# Text with × and 步.

# %% tags=["both"]
from course_lib import check

# %%
only_in_the_chapter = 1

# %%
only_in_the_chapter = 1

# %% [markdown] tags=["exercise"]
# **1.1** How many?

# %% tags=["exercise", "kept-tag"]
answer = ...
### BEGIN SOLUTION
answer = 125
### END SOLUTION
check("1.1", answer)

# %% [markdown] tags=["exercise"]
# **1.2**

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

@exercise("1.1", kind="calculate", title="count", hints=("Divide.",))
def _count(answer): ...

@exercise("1.2", kind="implement", title="steps", hints=("Round up.",))
def _steps(function): ...
"""
START = "# %% [markdown]\n# # Start here\n\n# %%\n1 + 1\n"


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
    assert chapter[1].startswith("# 1 Steps and batches")
    assert chapter[2:-1] == [
        f"{FOLD}\nfrom course_lib import check",
        *["only_in_the_chapter = 1"] * 2,
    ]
    assert exercises[2:-1] == [
        "from course_lib import check",
        "### 1.1 Calculate: count\n\nHow many?",
        'answer = ...\ncheck("1.1", answer)',
        "### 1.2 Implement: steps",
        'def steps(samples: int) -> int:\n    """Steps."""\n    ...',
        'check("1.2", steps)',
    ]
    assert solutions[4:7] == [
        'answer = 125\ncheck("1.1", answer)',
        "### 1.2 Implement: steps",
        'def steps(samples: int) -> int:\n    """Steps."""\n    return samples',
    ]


def test_title_cells_say_how_to_work_and_link_to_the_chapter(root):
    build(root)
    title = sources(root / "exercises" / "01_steps.ipynb")[1]
    assert title.startswith("# Exercises: 1 Steps and batches\n")
    for word in (
        "../notebooks/01_steps.ipynb",
        "`check`",
        'hint("1.1")',
        "course check exercises/",
    ):
        assert word in title
    assert sources(root / "solutions" / "01_steps.ipynb")[1].startswith("# Solutions: 1 Steps")


def test_a_chapter_without_exercises_writes_only_its_notebook(root):
    build(root)
    assert (root / "notebooks" / "00_start_here.ipynb").exists()
    assert not (root / "exercises" / "00_start_here.ipynb").exists()
    assert not (root / "solutions" / "00_start_here.ipynb").exists()


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
    assert cells[-2]["id"] == cells[-3]["id"] + "-2" and cells[-1]["id"] == cells[0]["id"] + "-2"


@pytest.mark.parametrize(
    "line", ["x = ...", "a, b = ..., ...", "x: int = ...", "t = [..., ...]", "..."]
)
def test_a_placeholder_stands_for_the_answer(line):
    source = f"{line}\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\ncheck"
    assert unsolved(source) == f"{line}\ncheck"
    assert solved(source) == "x = 1\ncheck"


@pytest.mark.parametrize("line", ["x = 1", "def f():", "f(...)", "# ..."])
def test_other_lines_stay_in_both(line):
    source = f"{line}\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    assert unsolved(source) == f"{line}\n    ..."
    assert solved(source) == f"{line}\n    return 1"


def test_what_is_given_stands_only_in_the_exercise():
    source = "def f():\n    ### BEGIN GIVEN\n    return 1\n    ### END GIVEN\n" + (
        "    ### BEGIN SOLUTION\n    return 2\n    ### END SOLUTION\n\nf()"
    )
    assert unsolved(source) == "def f():\n    return 1\n\nf()"
    assert solved(source) == "def f():\n    return 2\n\nf()"


def test_one_place_to_write_is_enough():
    source = (
        'found = {\n    "a": ...,\n}\n### BEGIN SOLUTION\nfound = {"a": 1}\n### END SOLUTION\ncheck'
    )
    assert unsolved(source) == 'found = {\n    "a": ...,\n}\ncheck'
    source = "a = ...\ndef f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    assert unsolved(source) == "a = ...\ndef f():\n    ..."


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
    chapter = f'{CHAPTER}\n# %% tags=["both"]\n{source}\n'
    text_of(root, "01_steps").write_text(chapter, encoding="utf-8")
    build(root)
    for folder in FOLDERS:
        cells = json.loads((root / folder / "01_steps.ipynb").read_text(encoding="utf-8"))["cells"]
        here = folded and folder == "notebooks"
        assert ("jupyter" in cells[-2]["metadata"]) == here
        # All that JupyterLab shows of it.
        assert cells[-2]["source"][0].startswith(FOLD) == here


def test_a_fold_that_the_reader_opens_is_no_fault_and_one_that_build_misses_is(root, monkeypatch):
    build(root)
    path = root / "notebooks" / "01_steps.ipynb"
    edit(path, lambda cells: [cell["metadata"].clear() for cell in cells])
    assert compare(root) == []
    monkeypatch.setattr(notebooks, "_only_prepares", lambda source: False)
    assert [o.line(root) for o in compare(root)] == [
        "stale    notebooks/01_steps.ipynb: run `course build`"
    ]


def test_every_notebook_leads_to_its_neighbours(root):
    text_of(root, "02_last").write_text("# %% [markdown]\n# # 2 The last\n")
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
        (_without(CHAPTER, "### END SOLUTION\n"), 19, "has no end"),
        (_without(CHAPTER, "### BEGIN SOLUTION\n"), 20, "never began"),
        (CHAPTER + "### BEGIN SOLUTION\n", 36, "has no end"),
        (CHAPTER.replace("### BEGIN SOLUTION", "x ### BEGIN SOLUTION"), 19, "alone on its line"),
        (CHAPTER.replace("### END SOLUTION", "### END GIVEN"), 19, "add `### END SOLUTION`"),
        (CHAPTER.replace("only_in_the_chapter = 1", "### BEGIN GIVEN"), 9, "has no end"),
        ("x = 1\n" + CHAPTER, 1, "before the first cell"),
    ],
)
def test_a_fault_gets_one_sentence_with_file_and_line(root, text, line, word):
    text_of(root, "01_steps").write_text(text, encoding="utf-8")
    with pytest.raises(Problem) as caught:
        build(root)
    assert f"01_steps.py:{line}: " in str(caught.value) and word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (root / "notebooks").exists(), "nothing is written when a chapter is at fault"


def test_a_duplicate_number_or_odd_name_is_refused(root):
    text_of(root, "01_other").write_text(START)
    with pytest.raises(Problem, match=r"01_steps\.py:1: 01_other\.py has number 01 too"):
        read_chapters(root)
    text_of(root, "01_other").rename(text_of(root, "01_other").with_name("1_other.py"))
    with pytest.raises(Problem, match=r"other\.py:1: a chapter is named like"):
        read_chapters(root)


def test_a_folder_without_chapters_gets_a_sentence(tmp_path):
    with pytest.raises(Problem, match="has no chapters"):
        build(tmp_path)


def test_without_jupytext_the_sentence_says_how_to_get_it(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "jupytext", None)
    with pytest.raises(Problem, match=r"jupytext is missing.*pip install"):
        build(root)


# --- what the learner wrote -------------------------------------------------------------------


def test_a_second_build_writes_nothing(root):
    build(root)
    assert {outcome.state for outcome in build(root)} == {"current"}


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


def test_an_edit_is_left_alone_while_the_chapter_is_the_same(root):
    build(root)
    path = root / "exercises" / "01_steps.ipynb"
    edit(path, answer_it)
    before = snapshot(root)
    outcome = next(o for o in build(root) if o.path == path)
    assert outcome.state == "kept" and "you edited it" in outcome.text
    assert snapshot(root) == before


def test_a_new_version_is_written_beside_an_edit(root):
    build(root)
    path = root / "exercises" / "01_steps.ipynb"
    edit(path, answer_it)
    before = path.read_bytes()
    change_chapter(root)
    outcome = next(o for o in build(root) if o.path == path)
    beside = root / "exercises" / "01_steps.new.ipynb"
    assert outcome.state == "kept" and beside.name in outcome.text
    assert path.read_bytes() == before
    assert "How many, exactly?" in sources(beside)[3]
    edit(beside, answer_it)
    edited = beside.read_bytes()
    build(root)
    assert path.read_bytes() == before and beside.read_bytes() == edited
    assert "How many, exactly?" in sources(root / "exercises" / "01_steps.2.new.ipynb")[3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "[]",
        '{"cells": []}',
        '{"cells": 3}',
        '{"cells": [3]}',
        '{"cells": [{"source": [3]}]}',
    ],
)
def test_a_file_that_build_did_not_write_is_left_alone(root, text):
    path = root / "exercises" / "01_steps.ipynb"
    path.parent.mkdir()
    path.write_text(text)
    build(root)
    assert path.read_text() == text
    assert (root / "exercises" / "01_steps.new.ipynb").exists()


def test_what_no_chapter_asks_for_goes_only_if_nobody_edited_it(root):
    build(root)
    mine = root / "exercises" / "05_mine.ipynb"
    copy = root / "exercises" / "01_copy.ipynb"
    shutil.copy(root / "exercises" / "01_steps.ipynb", copy)
    mine.write_text("{}")
    edit(root / "exercises" / "01_steps.ipynb", answer_it)
    text_of(root, "01_steps").unlink()
    states = {o.path.relative_to(root).as_posix(): o.state for o in build(root)}
    assert states["notebooks/01_steps.ipynb"] == "removed"
    assert states["exercises/01_steps.ipynb"] == "kept"
    assert mine.exists() and copy.exists() and (root / "exercises" / "01_steps.ipynb").exists()
    assert not (root / "notebooks" / "01_steps.ipynb").exists()


# --- compare ----------------------------------------------------------------------------------


def test_compare_names_each_fault_and_writes_nothing(root):
    build(root)
    (root / "solutions" / "01_steps.ipynb").unlink()
    edit(root / "notebooks" / "01_steps.ipynb", answer_it)
    change_chapter(root)
    text_of(root, "02_gone").write_text(START)
    build_02 = root / "notebooks" / "02_gone.ipynb"
    gone = read_chapters(root)[2]
    build_02.write_text(render(gone, [gone])["notebooks"])
    text_of(root, "02_gone").unlink()
    before = snapshot(root)
    found = {o.path.relative_to(root).as_posix(): o.state for o in compare(root)}
    assert found == {
        "solutions/01_steps.ipynb": "missing",
        "notebooks/01_steps.ipynb": "edited",
        "exercises/01_steps.ipynb": "stale",
        "notebooks/02_gone.ipynb": "surplus",
    }
    assert snapshot(root) == before


def test_the_remedy_of_an_edit_ends_it(root):
    build(root)
    path = root / "notebooks" / "01_steps.ipynb"
    edit(path, answer_it)
    build(root)
    (fault,) = compare(root)
    assert fault.text == (
        f"move the edit to {ROOMS}/ch01_steps/01_steps.py, delete this notebook, "
        "then run `course build`"
    )
    path.unlink()
    build(root)
    assert compare(root) == []


def test_the_remedy_of_a_glossary_that_was_edited_names_its_table(root):
    table = root / ROOMS / "glossary.tsv"
    table.write_text(
        "chapter\tterm\t中文\tmeaning\t又作\n1\tstep\t步\tOne step.\n", encoding="utf-8"
    )
    build(root)
    edit(root / "notebooks" / "glossary.ipynb", answer_it)
    assert "chapters/glossary.tsv," in compare(root)[0].text


def test_what_no_chapter_asks_for_is_said_with_the_remedy_that_ends_it(root):
    build(root)
    edit(root / "exercises" / "01_steps.ipynb", answer_it)
    text_of(root, "01_steps").unlink()
    texts = {o.path.parent.name: o.text for o in compare(root)}
    assert texts["notebooks"] == "no chapter asks for it: run `course build`"
    assert texts["exercises"] == "no chapter asks for it: delete or rename what you edited"
    build(root)
    (root / "exercises" / "01_steps.ipynb").rename(root / "exercises" / "mine.ipynb")
    assert compare(root) == []


def test_a_changed_tag_is_stale(root):
    build(root)
    path = text_of(root, "01_steps")
    path.write_text(CHAPTER.replace("kept-tag", "other-tag"), encoding="utf-8")
    assert {outcome.state for outcome in compare(root)} == {"stale"}
    build(root)
    assert compare(root) == []


# --- this repository --------------------------------------------------------------------------


def _git(*arguments):
    try:
        run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    return run.stdout if run.returncode == 0 else b""


def test_the_committed_notebooks_are_what_the_committed_chapters_give(tmp_path):
    """Blobs, not files: a learner's own work in the tree must not fail the tests."""
    names = _git("ls-files", str(ROOMS), *FOLDERS).decode().splitlines()
    if not any(name.endswith(".ipynb") for name in names):
        pytest.skip("no notebooks are committed here, or this is no git repository")
    for name in names:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_git("show", f":{name}"))
    committed = {path: data for path, data in snapshot(tmp_path).items() if path.is_file()}
    texts = {path: text.encode() for path, text in expected(tmp_path).items()}
    wrong = [p.name for p in committed.keys() | texts.keys() if committed.get(p) != texts.get(p)]
    assert not wrong, f"run `course build` and commit: {sorted(wrong)}"
