"""The table of errata is whole: 61 numbers, each with words, a verdict, a source and a test."""

import json
import re
from pathlib import Path

from every import every

HERE = Path(__file__).parent
TABLE = json.loads((HERE / "errata.json").read_text(encoding="utf-8"))
# W: wrong. D: doubtful or misleading. C: right on a condition. OK: arithmetic reproduced.
VERDICTS = {"W": 26, "D": 23, "C": 9, "OK": 3}


def numbers_with_a_test():
    """Numbers of all functions test_erratum_N, or test_erratum_N_and_words."""
    pattern = re.compile(r"^def test_erratum_(\d+)(?=[_(])", re.MULTILINE)
    files = HERE.glob("test_errata_*.py")
    return {
        int(number)
        for file in files
        for number in pattern.findall(file.read_text(encoding="utf-8"))
    }


def test_the_table_has_the_61_numbers_once_and_in_order():
    assert [entry["number"] for entry in TABLE] == list(range(1, 62))


def test_every_erratum_has_a_test_and_every_test_an_erratum():
    assert numbers_with_a_test() == set(range(1, 62))


def test_the_verdicts_are_those_of_the_review():
    counts = {verdict: 0 for verdict in VERDICTS}
    for entry in TABLE:
        counts[entry["verdict"]] += 1
    assert counts == VERDICTS


@every("entry", TABLE)
def test_an_entry_says_what_is_claimed_and_what_is_right(entry):
    assert set(entry) == {"number", "notes", "verdict", "claim", "right", "source"}
    assert entry["notes"] in {"000", "001", "002", "003", "004"}
    for words in (entry["claim"], entry["right"]):
        assert words.endswith(".") and words[0] == words[0].upper() and len(words) > 15
    assert entry["claim"] != entry["right"]
    assert len(entry["source"]) > 5
