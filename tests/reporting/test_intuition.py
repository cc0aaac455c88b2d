"""How far guesses are off: factors, topics, the typical and the largest miss."""

import re

import pytest

from course_lib import figures
from course_lib.chapters import files
from course_lib.checking import expect, predict, progress
from course_lib.reporting import intuition, topics, typical_miss
from course_lib.reporting.intuition import by_topic, guesses, largest_misses
from tests.reporting.facts_made import PREDICTIONS

CHAPTERS = files("[0-9]*.py").values()


def test_guesses_come_by_chapter_with_factor_and_gap():
    made = {one.key: one for one in guesses(PREDICTIONS)}
    assert list(made) == ["2.variance", "5.days", "13.tp_bytes", "17.time"]
    assert [one.factor for one in made.values()] == [None, 1.0, 0.25, 0.25]
    assert [one.gap for one in made.values()] == [None, None, 0.0, 15.0]
    assert made["2.variance"].words == "not compared yet"
    assert made["17.time"].words == "4 × too low"


def test_a_guess_without_a_factor_is_in_no_row():
    made = guesses({"a": {"yours": 0, "found": 3}, "b": {"yours": -1, "found": 3}})
    assert by_topic(made) == {} and typical_miss(made) is None and largest_misses(made) == []


def test_topics_are_by_key_and_else_by_unit():
    assert by_topic(guesses(PREDICTIONS)) == {"messages": [0.25], "time": [1.0, 0.25]}
    units = {"99.a": "GB", "99.b": "ms", "99.c": "FLOP", "99.d": ""}
    found = [topics.topic_of(key, {"unit": unit}) for key, unit in units.items()]
    assert found == ["memory", "time", "FLOPs", "counts"]


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


def test_every_listed_key_is_a_prediction_and_listed_once():
    texts = "".join(path.read_text(encoding="utf-8") for path in CHAPTERS)
    asked = set(re.findall(r"predict\(\s*\"([^\"]+)\"", texts))
    listed = [key for keys in topics._KEYS.values() for key in keys.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) <= asked, "a key that no chapter asks: take it out of reporting/topics.py"
    assert len(asked & set(listed)) > len(asked) / 2


@pytest.mark.parametrize("factors", [{}, {"time": []}, {"time": [0.0]}, {"time": [-1.0]}])
def test_a_figure_of_nothing_is_refused(factors):
    with pytest.raises(ValueError, match="factors"):
        figures.guesses(factors)


def test_the_figure_says_direction_and_number():
    words = figures.guesses({"time": [0.1, 0.5, 1.0], "memory": [1.0]}).sentence
    assert "time: 3 guesses, 1 right, median 2 × too low" in words
    assert "memory: 1 guess, 1 right, mostly right" in words
    assert "low and high alike" in figures.guesses({"time": [0.5, 1.0, 2.0, 3.0, 0.2]}).sentence
    assert intuition.TOPICS[0] == "memory"
