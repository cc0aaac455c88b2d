"""A run's GPU-hours between two limits: published runs pass, claims above the peak do not."""

import pytest
from probes import Probe, by_name

from course_lib.chapters.ch17_capstone import whole_run
from course_lib.chapters.ch17_capstone.judged_run import LEAST, MOST, JudgedRun, audit_run
from course_lib.theory.inputs.hardware import ACCELERATORS

BLOOM = (176_247_271_424, 366e9, 1_082_990, 312e12)
PAPER = "arXiv:2211.05100"


def _judged(run, **limits):
    sizes = (run.parameters, run.tokens, run.gpu_hours, run.peak_flop_per_s)
    return audit_run(*sizes, source="its report", **limits)


def test_published_runs_are_plausible():
    for run in (whole_run.BLOOM, *whole_run.OTHERS):
        found = _judged(run)
        assert found.verdict == "plausible", run.name
        assert (found.flop_per_s, found.utilisation) == (run.flop_per_s, run.mfu)


def test_48_s_for_an_update_on_2048_cards_is_impossible():
    hours = 2048 * 48 / 3600
    found = audit_run(68.98e9, 16_384 * 4096, hours, 165.2e12, source="note 004")
    assert found.verdict == "impossible" and found.utilisation == pytest.approx(1.71, rel=0.01)


def test_a_pipeline_that_is_hardly_filled_is_poor():
    # 15.23 s for 16 sequences, "TFLOPs: 8.04" with recomputation: the README of tr11-176B-ml.
    found = audit_run(176_247_271_424, 16 * 2048, 384 * 15.23 / 3600, 312e12, source="its log")
    assert found.verdict == "poor"
    assert found.flop_per_s * 8 / 6 == pytest.approx(8.04e12, rel=0.05)


def test_on_a_limit_it_is_plausible():
    part = audit_run(*BLOOM, source=PAPER).utilisation
    assert audit_run(*BLOOM, source=PAPER, most=part, least=part).verdict == "plausible"
    assert audit_run(*BLOOM, source=PAPER, most=part * 0.999, least=0.1).verdict == "impossible"
    assert audit_run(*BLOOM, source=PAPER, most=0.9, least=part * 1.001).verdict == "poor"


def test_the_upper_limit_is_the_best_measured_matmul():
    best = ACCELERATORS["A100-SXM-80GB"].matmul_efficiency
    assert best == pytest.approx(MOST, rel=2e-3) and best < 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": 0}, "parameters must be above 0"),
        ({"gpu_hours": -1}, "gpu_hours must be above 0"),
        ({"source": " "}, "source is empty: name where"),
        ({"most": 1.5}, "most"),
        ({"least": 0.9}, "least 0.9 is above most 0.87: no run would be plausible"),
    ],
)
def test_what_cannot_be_judged_is_refused(changes, words):
    names = ("parameters", "tokens", "gpu_hours", "peak_flop_per_s", "source")
    with pytest.raises(ValueError, match=words):
        audit_run(**dict(zip(names, (*BLOOM, PAPER), strict=True)) | changes)


PROBES = by_name(
    Probe(
        audit_run,
        {
            "parameters": BLOOM[0],
            "tokens": BLOOM[1],
            "gpu_hours": BLOOM[2],
            "peak_flop_per_s": BLOOM[3],
            "source": "a",
            "most": MOST,
            "least": LEAST,
        },
        {
            "parameters": 70e9,
            "tokens": 1e12,
            "gpu_hours": 2e6,
            "peak_flop_per_s": 989e12,
            "source": "b",
            "most": 0.25,
            "least": 0.5,
        },
    ),
)
RECORDS = {
    "JudgedRun": (JudgedRun(1e14, 0.3, "plausible", "a"), JudgedRun(3e14, 1.2, "impossible", "b")),
}
