"""How far guesses are off, and what the learner's own words are."""

import json
import re

import pytest
from sample import HERE

from course_lib.chapters import files
from course_lib.chapters.ch17_capstone.reporting import guesses as judging
from course_lib.chapters.ch17_capstone.reporting import texts, typical_miss
from course_lib.chapters.ch17_capstone.reporting.guesses import by_topic, guesses, largest_misses
from course_lib.checking import expect, predict, progress
from tests.chapters.ch17_capstone.reporting.facts_made import PREDICTIONS


def test_guesses_come_by_chapter_with_factor_and_gap():
    made = {one.key: one for one in guesses(PREDICTIONS)}
    assert list(made) == ["2.variance", "5.days", "13.tp_bytes", "17.time"]
    assert [one.factor for one in made.values()] == [None, 1.0, 0.25, 0.25]
    assert [one.gap for one in made.values()] == [None, None, 0.0, 15.0]
    assert made["2.variance"].words == "not compared yet"
    assert made["17.time"].words == "4 × too low"
    assert by_topic([*made.values()]) == {"messages": [0.25], "time": [1.0, 0.25]}


def test_a_guess_without_a_factor_is_in_no_row():
    made = guesses({"a": {"yours": 0, "found": 3}, "b": {"yours": -1, "found": 3}})
    assert by_topic(made) == {} and typical_miss(made) is None and largest_misses(made) == []


@pytest.mark.parametrize(
    ("key", "unit", "topic"),
    [
        ("6.ms", "ms", "time"),
        ("6.moved", "GB", "messages"),
        ("17.xl", "GB", "memory"),
        ("1.cost", "TFLOP/s", "FLOPs"),
        ("6.times", "", "messages"),
        ("1.steps", "", "counts"),
        ("own", "", "counts"),
    ],
)
def test_a_guess_is_sorted_by_its_unit_then_by_its_chapter(key, unit, topic):
    assert judging.topic_of(key, unit) == topic


def test_the_typical_miss_is_the_median_in_either_direction():
    factors = {"1.a": 2.0, "1.b": 0.1, "1.c": 1.0}
    made = guesses({key: {"yours": one, "found": 1} for key, one in factors.items()})
    assert typical_miss(made) == 2
    assert [one.key for one in largest_misses(made)] == ["1.b", "1.a"]
    assert [one.key for one in largest_misses(made, 1)] == ["1.b"]


def test_what_predict_and_expect_keep_is_what_a_guess_needs():
    assert typical_miss() is None
    expect(100, 103, within=0.05, yours=predict("9.x", "How many GB?", yours=50, unit="GB"))
    (one,) = guesses(progress.read()["predictions"])
    assert (one.question, one.unit, one.theory, one.measured) == ("How many GB?", "GB", 100, 103)
    assert one.gap == pytest.approx(0.03) and typical_miss() == pytest.approx(103 / 50)
    expect(100, yours=predict("9.x", "How many GB?", yours=50, unit="GB"))
    (one,) = guesses(progress.read()["predictions"])
    assert (one.theory, one.measured, one.found) == (100, None, 100)


def test_the_sample_learner_answers_questions_that_the_texts_ask():
    texts_of_all = "".join(path.read_text(encoding="utf-8") for path in files("[0-9]*.py").values())
    asked = dict(re.findall(r"predict\(\s*\"([^\"]+)\",\s*\"([^\"]*)\"", texts_of_all))
    sample = json.loads((HERE / "sample_learner.json").read_text(encoding="utf-8"))
    kept = {key: one["question"] for key, one in sample["predictions"].items()}
    assert kept == {key: asked.get(key) for key in kept}
    explained = texts.read(HERE / "sample_defence.md").explained
    assert set(explained) <= set(asked)


# --- the learner's own file -------------------------------------------------------------------

OWN = """# Defence

It fits with 12 GB to spare. <!-- not this -->

## Why

Because.

# Gaps

- **17.time**: eight processes share
  two cores
`5.lost`：两个核心很慢
5.gain:
"""


def test_the_file_is_made_once_and_left_alone(home):
    assert texts.read(home / "none.md") == texts.Texts("", {})
    path = texts.prepare()
    assert path == home / "report" / "defence.md"
    fresh = texts.read(path)
    assert (fresh.words, fresh.explained, fresh.defended) == (0, {}, False)
    path.write_text(OWN, encoding="utf-8")
    assert texts.prepare() == path and path.read_text(encoding="utf-8") == OWN
    own = texts.read(path)
    assert "Because." in own.defence and "not this" not in own.defence
    assert "17.time" not in own.defence
    assert own.words == 8  # headings do not count
    assert own.explained["17.time"] == "eight processes share two cores"
    explained = {key: own.explains(key) for key in ("17.time", "5.lost", "5.gain", "5.meta")}
    assert explained == {"17.time": True, "5.lost": True, "5.gain": False, "5.meta": False}


def test_words_are_counted_in_both_languages_and_a_defence_needs_forty():
    counted = {"": 0, "one two": 2, "两个 cores": 3, "12 GB, ZeRO-1": 4}
    assert {text: texts.count_words(text) for text in counted} == counted
    assert [texts.Texts("word " * count, {}).defended for count in (39, 40)] == [False, True]
