"""Audit D: BLOOM's log to the last printed digit, and three factors that make its MFU."""

import pytest
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.whole_run import (
    BLOOM,
    BLOOM_STEP,
    OTHERS,
    LoggedStep,
    Run,
    RunAudit,
    bloom,
)


def test_the_logged_rate_is_found_to_its_last_digit():
    # "elapsed time per iteration (s): 105.22 … TFLOPs: 149.02", 18 March 2022.
    assert round(BLOOM_STEP.flop_per_s / 1e12, 2) == 149.02


def test_99_teraflop_and_32_percent():
    assert BLOOM.flop_per_s == pytest.approx(99.3e12, rel=1e-3)
    assert BLOOM.mfu == pytest.approx(0.318, abs=5e-4)


def test_bloom_has_as_many_parameters_as_its_shape():
    # Tied embedding, no positions, biases, and a norm behind the embedding: 70 layers of 14336.
    h, vocab = 14_336, 250_880
    assert BLOOM.parameters == vocab * h + 70 * (12 * h**2 + 13 * h) + 2 * 2 * h


def test_three_factors_make_the_whole():
    audit = RunAudit(BLOOM, BLOOM_STEP)
    assert audit.hfu * audit.useful * audit.kept == pytest.approx(BLOOM.mfu)
    assert "0.478 · 0.737 · 0.904 = 31.8%" in audit.explain()


def test_3_5_months_are_the_steps_and_the_hours_are_more():
    # arXiv:2211.02001, table 1: the run took 118 days and 5 hours.
    assert BLOOM.gpu_hours / 384 / 24 == pytest.approx(118.2, rel=0.01)
    assert [claim.verdict for claim in bloom().claims] == [
        "right on its own terms",
        "right on its own terms",
        "right number, other terms",
    ]


def test_others_are_where_their_reports_say():
    # LLaMA-2 70B: 133.7 TFLOP/s from its model card.
    assert [round(run.mfu, 2) for run in OTHERS] == [0.48, 0.43, 0.35]
    assert OTHERS[1].flop_per_s == pytest.approx(133.7e12, rel=1e-3)


RUN = {
    "name": "x",
    "parameters": 176e9,
    "tokens": 366e9,
    "gpu_hours": 1.1e6,
    "peak_flop_per_s": 312e12,
}
STEP = {"step_s": 105.0, "tokens": 2**22, "gpus": 384, "hardware_flop": 6e18}
REFUSED = [
    (lambda: Run("x", 0, 1, 1, 1), "parameters must be above 0"),
    (lambda: LoggedStep(1.0, 0, 1, 1.0), "tokens must be at least 1"),
    (
        lambda: RunAudit(Run("x", 1e9, 1e12, 10, 312e12), BLOOM_STEP),
        "10 GPU-hours are fewer than the steps alone take",
    ),
]
PROBES = by_name(
    Probe(
        Run,
        RUN,
        {
            "name": "y",
            "parameters": 70e9,
            "tokens": 1e12,
            "gpu_hours": 2e6,
            "peak_flop_per_s": 989e12,
        },
        see=lambda run: [run.name, run.flop, run.flop_per_s, run.mfu],
    ),
    Probe(
        LoggedStep,
        STEP,
        {"step_s": 50.0, "tokens": 2**21, "gpus": 8, "hardware_flop": 1e18},
        see=lambda step: [step.flop_per_s, step.tokens],
    ),
    Probe(
        RunAudit,
        {"run": BLOOM, "step": BLOOM_STEP},
        {"run": Given(Run(**RUN)), "step": Given(LoggedStep(**STEP))},
        see=lambda audit: [audit.hfu, audit.useful, audit.kept],
    ),
    Probe(
        bloom,
        {"run": BLOOM, "step": BLOOM_STEP},
        {"run": Given(Run(**RUN)), "step": Given(LoggedStep(**STEP))},
    ),
)
