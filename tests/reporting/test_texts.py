"""The learner's own file: made once, read, never written over."""

import pytest

from course_lib.reporting import texts

OWN = """# Defence

It fits with 12 GB to spare. <!-- not this -->

## Why

Because.

# Gaps

- **17.time**: eight processes share
  two cores
`5.mfu`：两个核心很慢
5.gain:
"""


def test_the_file_is_made_once_and_left_alone(home):
    path = texts.prepare()
    assert path == home / "report" / "defence.md"
    fresh = texts.read(path)
    assert (fresh.words, fresh.explained, fresh.defended) == (0, {}, False)
    path.write_text(OWN, encoding="utf-8")
    assert texts.prepare() == path and path.read_text(encoding="utf-8") == OWN


def test_defence_and_causes_are_told_apart(tmp_path):
    path = tmp_path / "own.md"
    path.write_text(OWN, encoding="utf-8")
    own = texts.read(path)
    assert "Because." in own.defence and "not this" not in own.defence
    assert "17.time" not in own.defence
    assert own.words == 8  # headings do not count
    assert own.explained["17.time"] == "eight processes share two cores"
    assert [own.explains(key) for key in ("17.time", "5.mfu", "5.gain", "5.slower")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), ("one two", 2), ("两个 cores", 3), ("12 GB, ZeRO-1", 4)],
)
def test_words_are_counted_in_both_languages(text, words):
    assert texts.count_words(text) == words


def test_a_defence_needs_forty_words():
    assert not texts.Texts("word " * 39, {}).defended
    assert texts.Texts("word " * 40, {}).defended


def test_without_a_file_there_are_no_words(tmp_path):
    assert texts.read(tmp_path / "none.md") == texts.Texts("", {})
