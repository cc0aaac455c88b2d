"""Each automatic check says yes, no and open where it should."""

from dataclasses import replace

import pytest

from course_lib.chapters.ch17_capstone.reporting.checks import checks
from course_lib.chapters.ch17_capstone.reporting.guesses import guesses
from course_lib.chapters.ch17_capstone.reporting.kept import Row
from course_lib.chapters.ch17_capstone.reporting.texts import Texts
from tests.chapters.ch17_capstone.reporting.facts_made import (
    EMPTY,
    FULL,
    PLAN,
    PREDICTIONS,
    RUN,
    WORDS,
)


def state(facts, words):
    (found,) = [check for check in checks(facts) if words in check.what]
    return found.state, found.words


def test_a_full_report_is_all_yes_and_an_empty_one_all_open():
    assert {check.state for check in checks(FULL)} == {"yes"}
    assert {check.state for check in checks(EMPTY)} == {"open"}
    assert len(checks(FULL)) == 9


LOST = replace(PLAN.mine, losses=[0.3, 0.0])
UNEQUAL = replace(RUN, rows=[Row("tp all-reduce", 8, 9, 1, 1)])
MORE_CALLS = replace(RUN, rows=[Row("tp all-reduce", 8, 8, 1, 2)])
OPEN_GUESSES = guesses(PREDICTIONS)


@pytest.mark.parametrize(
    ("change", "what", "words"),
    [
        ({"plan": replace(PLAN, capacity_bytes=10)}, "fits the memory", "68.0 GB of"),
        ({"plan": replace(PLAN, mine=LOST)}, "both sets", "30.0% behind"),
        ({"plan": replace(PLAN, refusals={"megatron": "no"})}, "engine", "none"),
        ({"texts": replace(WORDS, defence="too short")}, "defence", "2 words of 40"),
        ({"run": replace(RUN, yours=[])}, "own parts", "0 of its 1 parts"),
        ({"run": replace(RUN, gradient_gap=0.1)}, "one process", "gradient by 1e-01"),
        ({"run": UNEQUAL}, "bytes equal", "not tp all-reduce"),
        ({"run": MORE_CALLS}, "bytes equal", "not tp all-reduce"),
        ({"texts": Texts(WORDS.defence, {})}, "gaps over", "no line for 17.time"),
        ({"guesses": OPEN_GUESSES}, "predictions are closed", "3 of 4"),
    ],
)
def test_each_check_can_say_no(change, what, words):
    found, said = state(replace(FULL, **change), what)
    assert found == "no" and words in said
