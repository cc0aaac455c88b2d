"""Verdicts come from numbers alone."""

import pytest
from probes import Probe, by_name

from course_lib.theory.audits.claim import Audit, Claim


@pytest.mark.parametrize(
    ("said", "own", "found", "verdict", "factor"),
    [
        (10, 10.4, 9.6, "right", 0.96),
        (10, 10, 40, "right on its own terms", 4),
        (10, 40, 10, "right number, other terms", 1),
        (10, 20, 40, "wrong", 4),
        (10, None, 40, "wrong", 4),
        (10, None, 10, "right number, other terms", 1),
        (0, 0, 0, "right", 1),
        (0, 0, 5, "right on its own terms", 0),
    ],
)
def test_three_numbers_make_a_verdict(said, own, found, verdict, factor):
    claim = Claim("it is so", said, own, found, "of this")
    assert (claim.verdict, claim.factor) == (verdict, pytest.approx(factor))
    assert verdict in claim.explain()


CLAIM = {"words": "it is so", "said": 10.0, "own_terms": 10.0, "found": 12.0, "because": "of this"}
REFUSED = [(lambda: Audit("somebody", ()), "claims is empty")]
PROBES = by_name(
    Probe(Claim, CLAIM, see=lambda claim: claim.explain()),
    Probe(Audit, {"source": "somebody", "claims": (Claim(**CLAIM),)}),
)
