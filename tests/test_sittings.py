"""The sittings: what each says of itself, how long it takes, and what a route makes of them."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from course_lib.chapters import files
from course_lib.checking import progress, report
from course_lib.sittings import (
    ROUTES,
    Overview,
    deeper_parts,
    parsed,
    reading_minutes,
    route_rows,
    sittings,
)
from course_lib.texts import TEXTS, Cell, asked_in, cells_of

PATHS = list(files(TEXTS).values())
TEXT = """\
# %% [raw] tags=["sitting"]
# question: How many?
# importance: 4
# difficulty: 3
# group: group
# needs: 3.1, 7

# %% [markdown]
# # 9 How much
#
# one two three

# %%
guess = predict("9.a", "How many?", yours=None)

# %% [markdown]
# ### Deeper: more

# %%
more = 1

# %% [markdown]
# ### Back

# %% [markdown] tags=["exercise"]
# ### 9.1 Build: it

# %% [raw] tags=["hints"]
# importance 5, difficulty 5, group
# A hint.
"""
BY_ID = {path.stem: path for path in PATHS}


def made(text=TEXT):
    return parsed("09_2_how_much", text)


def test_a_sitting_says_what_it_asks_and_needs():
    one = made()
    assert (one.number, one.chapter, one.title, one.question) == ("9.2", 9, "How much", "How many?")
    assert (one.importance, one.difficulty, one.group, one.needs) == (4, 3, True, ("3.1", "7"))
    assert one.predictions == ("9.a",) and not one.is_deeper
    (task,) = one.exercises
    assert (task.id, task.kind, task.importance, task.group) == ("9.1", "build", 5, True)
    assert asked_in(TEXT)["9.1"].hints == ("A hint.",)
    assert parsed("05_how_much", TEXT).number == "5" and parsed("09_3_deeper", TEXT).is_deeper


def test_minutes_come_from_words_cells_and_predictions_and_grow_with_difficulty():
    one = made()
    assert one.reading == pytest.approx(9 / 100 + 1.2 + 3)  # 9 words: "# 9 How much" … "### Back"
    assert one.folded == pytest.approx(3 / 100 + 1.2)
    (task,) = one.exercises
    assert task.minutes == pytest.approx(60 * 1.4 + 4 / 100)
    harder = made(TEXT.replace("difficulty: 3", "difficulty: 5"))
    assert harder.reading == pytest.approx(one.reading * 1.2)
    assert reading_minutes([Cell("markdown", "a " * 1000, 1)], 3) == pytest.approx(10)


def test_a_deeper_part_ends_at_a_heading_of_its_level():
    sources = ["## 1 A", "## 1.2 Deeper: b", "c", "### d", "## e", "### Deeper: f", "g", "### h"]
    parts = deeper_parts([Cell("markdown", each, 1) for each in sources])
    assert [[cell.source for cell in part] for part in parts] == [sources[1:4], sources[5:7]]


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("# importance: 4\n", "", "says no importance"),
        ("importance: 4", "importance: 6", "importance of 09_2_how_much must be 1 to 5"),
        ("How many?", "It is many", "must end in"),
        ("needs:", "wants:", "says 'wants'"),
        ('["sitting"]', '["other"]', "says no question"),
    ],
)
def test_a_sitting_that_says_too_little_is_refused(line, instead, words):
    with pytest.raises(ValueError, match=words):
        made(TEXT.replace(line, instead, 1))


# --- The sittings of the course -------------------------------------------------------------------


def own(path):
    cells = cells_of(path.read_text(encoding="utf-8"))
    return [cell for cell in cells if "exercise" not in cell.tags and cell.kind != "raw"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_sitting_is_short_and_begins_with_at_most_eight_imports(path):
    cells = own(path)
    assert len(cells) <= (110 if path.stem.endswith("_deeper") else 75)
    first = next((cell.source for cell in cells if cell.kind == "code"), "")
    imports = [it for it in ast.parse(first).body if isinstance(it, ast.Import | ast.ImportFrom)]
    assert len(imports) <= 8 and len({ast.unparse(it) for it in imports}) == len(imports)


@pytest.mark.parametrize("each", sittings(), ids=lambda each: each.name)
def test_a_sitting_takes_at_most_an_hour_and_a_half_and_needs_what_is_there(each):
    assert each.is_deeper or 15 <= each.reading <= 95
    numbers = {one.number for one in sittings()} | {str(one.chapter) for one in sittings()}
    assert set(each.needs) <= numbers - {each.number}


def bound_and_used(source):
    nodes = list(ast.walk(ast.parse(re.sub(r"(?m)^[%!].*", "", source))))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in names} - used
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {
        (node.asname or node.name).split(".")[0] for node in nodes if isinstance(node, ast.alias)
    }
    return bound | {node.arg for node in nodes if isinstance(node, ast.arg)}, used


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_thread_needs_nothing_from_folded_parts(path):
    """They may be left out, cells and all."""
    cells = own(path)
    folded = {cell.line for part in deeper_parts(cells) for cell in part}
    thread, deeper, missing = set(), set(), set()
    for cell in (cell for cell in cells if cell.kind == "code"):
        bound, used = bound_and_used(cell.source)
        if cell.line in folded:
            deeper |= bound
        else:
            missing |= (used - bound - thread) & deeper
            thread |= bound
    assert not missing


def test_every_exercise_is_rated_and_numbers_do_not_repeat():
    tasks = [task for each in sittings() for task in each.exercises]
    assert len({task.id for task in tasks}) == len(tasks) > 150
    rated = [
        re.match(r"# importance [1-5], difficulty [1-5]", part)
        for path in PATHS
        for part in path.read_text(encoding="utf-8").split('# %% [raw] tags=["hints"]\n')[1:]
    ]
    assert all(rated)


# --- Routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.name)
def test_a_route_fits_its_hours_and_holds_what_it_names(route):
    assert route.hours <= route.budget * 1.03  # the model is no better than that
    assert {each.number for each in route.sittings()} >= set(route.only)
    solved = [task.id for each in route.sittings() for task in route.tasks(each)]
    assert set(solved) >= set(route.exercises)


def test_the_readme_has_the_hours_of_the_model():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert all(f"| {' | '.join(row)} |" in readme for row in route_rows())


def test_the_map_links_to_every_sitting():
    shown = repr(Overview())
    assert all(
        f"[{each.title}]({each.name}.ipynb) {each.reading:.0f}" in shown for each in sittings()
    )
    assert all(" | ".join(row) in shown for row in route_rows())


def test_each_longer_route_takes_more():
    hours = [route.hours for route in ROUTES.values()]
    assert all(short < long for short, long in pairwise(hours))


def test_progress_follows_the_chosen_route(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    assert report.chosen(progress.read()).name == "thread"
    report.choose("evening")
    route = report.chosen(progress.read())
    first, second, *_ = route.sittings()
    at = report.summary()["route"]
    assert (at["done"], at["next"], report.next_notebook()) == (0, first.name, "")
    for key in first.predictions:
        progress.update("predictions", key, lambda record: record.update(yours=1.0, at="now"))
    for task in route.tasks(first):
        progress.update("exercises", task.id, lambda record: record.update(status="pass"))
    at = report.summary()["route"]
    assert (at["done"], at["next"]) == (1, second.name)
    assert at["hours_left"] == pytest.approx(at["hours"] - route.minutes(first) / 60)
    assert report.next_notebook() == f"notebooks/{second.name}.ipynb"
    assert "route evening: 1 of" in report.as_text(report.summary())
    with pytest.raises(ValueError, match="route must be one of evening, "):
        report.choose("morning")
