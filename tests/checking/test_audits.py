"""A verdict on a claim: each part is judged, and what passes is kept as a sentence."""

import pytest

from course_lib.chapters.ch17_capstone.audits import Audit
from course_lib.checking import Unanswered, Wrong, check, progress
from course_lib.checking.exercises import find
from course_lib.checking.progress import complete, empty

AUDIT = Audit(
    claim="it takes 48 s",
    found=81.6,
    unit="s",
    because="the peak is half as high",
    verdict="does not hold",
    causes={"the peak": "", "the bubble": "no card waits here"},
    sources={"a paper": "", "a blog": "it is the claim itself"},
    mistakes={162.0: "that is with the bubble"},
)
RIGHT = {
    "found": 82.0,
    "verdict": "does not hold",
    "because": "the peak",
    "source": "a paper",
}


@pytest.mark.parametrize("found", [81.6, 82, "81.6 s", " 82 ", "8.16e1"])
def test_a_number_within_one_per_cent_is_right_in_any_form(found):
    AUDIT.check(RIGHT | {"found": found})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"found": 162}, r"gave 162 s for 'found', expected another number: that is with the bub"),
        ({"found": 40.8}, r"for 'found' it gave 40.8 s, expected another answer: too small: exac"),
        ({"found": "much"}, r"wants a number \(s\) for 'found', got str 'much'"),
        ({"verdict": "holds"}, r"gave 'holds' for 'verdict', expected another: lay your number"),
        ({"verdict": "no"}, r"wants one of 'holds', .* for 'verdict', got str 'no'"),
        ({"because": "the bubble"}, r"gave 'the bubble' for 'because', .*: no card waits here"),
        ({"source": "a blog"}, r"gave 'a blog' for 'source', expected another: it is the claim"),
        ({"found": 162, "source": "a blog"}, "'found'"),
    ],
)
def test_the_first_part_that_is_wrong_is_told_without_the_answer(changes, words):
    with pytest.raises(Wrong, match=words) as refused:
        AUDIT.check(RIGHT | changes)
    assert "81" not in str(refused.value) and "the peak" not in str(refused.value)


def test_what_is_missing_or_open_is_told():
    with pytest.raises(Wrong, match="gave nothing for 'source'"):
        AUDIT.check({name: value for name, value in RIGHT.items() if name != "source"})
    with pytest.raises(Wrong, match="wants a dict with found, verdict, because, source"):
        AUDIT.check("does not hold")
    with pytest.raises(Unanswered):
        AUDIT.check(RIGHT | {"source": ...})


def test_the_sentence_has_claim_verdict_number_cause_and_source():
    assert AUDIT.sentence(RIGHT) == (
        '"it takes 48 s" does not hold: 82 s, because of the peak (a paper)'
    )


def test_a_verdict_that_passes_is_kept_and_a_wrong_one_is_not(capsys):
    audit = find("17.7")
    answer = {
        "found": 132.4,
        "verdict": "does not hold",
        "because": "hours below the best speed",
        "source": "arXiv:2211.05100",
    }
    check("17.7", answer | {"source": "arXiv:2001.08361"})
    assert "verdict" not in progress.read()["exercises"]["17.7"]
    check("17.7", answer)
    kept = progress.read()["exercises"]["17.7"]["verdict"]
    assert kept == audit.verdict(answer) and "132 TFLOP/s" in kept
    assert f"Your verdict is kept: {kept}" in capsys.readouterr().out
    check("17.7", answer | {"verdict": "holds"})
    assert progress.read()["exercises"]["17.7"]["verdict"] == kept


def test_a_record_whose_verdict_is_no_text_is_damaged():
    assert complete(empty() | {"exercises": {"17.7": {"verdict": 3}}}) is None
