"""`every` runs all cases, names those that fail, and leaves fixtures to pytest."""

import pytest
from every import every
from hypothesis import given
from hypothesis import strategies as st

SEEN = []


@every(("a", "b"), [(1, 2), (3, 4)])
def both(a, b, tmp_path=None):
    SEEN.append((a, b))
    assert a != 3, "three"


def test_all_cases_run_and_the_message_names_those_that_fail():
    SEEN.clear()
    with pytest.raises(AssertionError, match="1 of 2 cases failed") as failure:
        both()
    assert SEEN == [(1, 2), (3, 4)]
    assert "{'a': 3, 'b': 4}: AssertionError: three" in str(failure.value)


@every("least", [1, 5])
@given(number=st.integers(5, 9))
def test_examples_are_drawn_for_each_case(least, number):
    assert number >= least


def test_no_cases_is_an_error():
    with pytest.raises(AssertionError, match="cannot fail"):
        every("a", [])
