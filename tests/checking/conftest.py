import textwrap

import pytest

from course_lib import chapters, notebook
from course_lib.checking import grading, predictions, progress

CHAPTER = textwrap.dedent(
    '''
    """A chapter that exists only in tests."""
    from course_lib.checking import exercise, expect_calls, expect_number, expect_raises

    @exercise("90.1")
    def _updates(answer):
        expect_number(answer, 125, "500 samples / 4 per batch", unit="updates")

    @exercise("90.2")
    def _steps(function):
        signature = "steps(samples, batch)"
        cases = [((10, 5), 2), ((11, 5), 3, "the ragged batch is a step")]
        expect_calls(function, cases, "a step takes one batch", signature)
        expect_raises(function, (10, 0), ValueError, "no batch is empty", signature, "batch")
    '''
)
TEXT = """\
# %% [raw] tags=["quiz"]
# Which <one>?
# [ ] a & b
# [x] c
# Why: c is right
#
# And now?
# [x] yes
# [ ] no
# [ ] maybe
# Why: yes it is

# %% [markdown] tags=["exercise"]
# ### 90.1 Calculate: count updates

# %% [raw] tags=["hints"]
# Divide.
# 500 / 4.

# %% [markdown] tags=["exercise"]
# ### 90.2 Implement: count steps

# %% [raw] tags=["hints"]
# Round up.
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A progress folder of this test alone, and a kernel that has shown no hint yet."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(grading, "_next_hint", {})
    monkeypatch.setattr(grading, "_reason_of_last", {})
    monkeypatch.setattr(progress, "_noted", set())
    return tmp_path / "home"


@pytest.fixture
def chapter_folder(tmp_path, monkeypatch):
    """A folder with a room of chapter 90 in it, where chapters are looked for too."""
    folder = tmp_path / "chapters90"
    (folder / "ch90_made").mkdir(parents=True)
    (folder / "ch90_made" / "exercises.py").write_text(CHAPTER, encoding="utf-8")
    (folder / "ch90_made" / "90_made.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(chapters, "__path__", [*chapters.__path__, str(folder)])
    return folder


@pytest.fixture
def chapter(chapter_folder):
    """Chapter 90 as a module."""
    from course_lib.checking.exercises import chapter_module

    return chapter_module(90)


@pytest.fixture
def in_a_notebook(monkeypatch):
    """As in a cell of a notebook; [(slot, HTML, text)] of all that was shown."""
    shown = []
    monkeypatch.setattr(predictions, "_waiting", {})
    for module in (notebook, grading, predictions):
        monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr(
        notebook.Slot, "show", lambda slot, html, text: shown.append((slot, html, text))
    )
    return shown
