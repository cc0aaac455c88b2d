"""The audits of chapter 17, against what is published."""

import pytest
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone import claimed
from course_lib.chapters.ch17_capstone.claimed import (
    BLOOM,
    BLOOM_STEP,
    LEAST,
    MOST,
    OTHERS,
    JudgedRun,
    LoggedStep,
    NotesPlan,
    Run,
    RunAudit,
    Weak,
    audit_run,
    bloom,
    compared,
    fsdp_scaling,
    plan_2048,
)
from course_lib.theory.inputs.hardware import ACCELERATORS, HDR, accelerator
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.pipelines.simulation import timeline

RTX, H100, H200 = map(accelerator, ("RTX4090", "H100-SXM", "H200-SXM"))


def test_the_sums_of_the_notes_are_right_wherever_they_say_how():
    told = [claim for claim in plan_2048().claims if claim.own_terms is not None]
    assert len(told) == 9
    assert all(claim.verdict.startswith("right") for claim in told)


def test_groups_of_ten_layers_leave_the_stages_as_they_are():
    for stages in (80, 40):
        (claim,) = (it for it in plan_2048(NotesPlan(stages=stages)).claims if "groups" in it.words)
        assert claim.own_terms == 2 * stages / 10
        assert claim.found == pytest.approx((stages * 2 + 34) / (stages * 34))


def test_the_right_numbers_are_those_of_chapters_4_11_and_13():
    found = {claim.words: claim.found for claim in plan_2048().claims}
    assert found["a training step takes 48 s"] == pytest.approx(162, abs=1)
    assert found["a micro-batch takes 0.6 s in a layer"] == pytest.approx(1.018, rel=1e-3)
    assert found["the batch is 16384 sequences"] == 16384
    assert found["2048 cards exchange gradients with each other"] == 25.6
    full = found["full recomputation: 3240 layers instead of 80, 40 times the work"]
    assert full == pytest.approx(4 / 3)


@pytest.mark.parametrize("stages", [1, 8, 80])
def test_the_simulated_schedule_holds_as_much_as_is_said(stages):
    steps = timeline("1f1b", stages, 2 * stages)
    assert steps.in_flight(0) / stages == NotesPlan(stages=stages).held == 1


def test_faster_memory_changes_another_ratio():
    claim = compared(H100, H200)
    assert (claim.verdict, claim.found) == ("right on its own terms", 1)
    assert claim.said == pytest.approx(4.8 / 3.35)
    assert "295 to 206" in claim.because


def _numbers(audit):
    return [[claim.own_terms or 0, claim.found] for claim in audit.claims]


GPT, GPT3 = MODELS["gpt-1.7b"], MODELS["gpt3-175b"]


def test_175b_is_faster_here_than_in_the_paper_by_what_nothing_hides_there():
    # Zhao et al. 2023, section 5.4: more than 173 and 186 TFLOP/s per GPU with batches of 1 and 2.
    for batch, measured in ((1, 173e12), (2, 186e12)):
        found = Weak(GPT3, 128, 2048 * batch, 2048).flop_per_s
        assert measured < found < 1.25 * measured


def test_175b_scales_linearly_as_measured():
    rates = [Weak(GPT3, gpus, 2048, 2048).flop_per_s for gpus in (128, 256, 512)]
    assert max(rates) / min(rates) < 1.01


def test_parity_with_ddp_is_a_question_of_tokens():
    assert [Weak(GPT, 512, tokens).over_ddp > 1 for tokens in (512, 2048, 4096)] == [
        True,
        True,
        False,
    ]


def test_verdicts():
    audit = fsdp_scaling(Weak(GPT), Weak(GPT, 512, 512))
    assert [claim.verdict for claim in audit.claims] == [
        "right on its own terms",
        "right on its own terms",
        "right on its own terms",
        "wrong",
    ]


WEAK = {"shape": GPT, "gpus": 512, "tokens": 1024, "sequence": 512}


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


CLAIM = (176_247_271_424, 366e9, 1_082_990, 312e12)
PAPER = "arXiv:2211.05100"


def _judged(run, **limits):
    sizes = (run.parameters, run.tokens, run.gpu_hours, run.peak_flop_per_s)
    return audit_run(*sizes, source="its report", **limits)


def test_published_runs_are_plausible():
    for run in (claimed.BLOOM, *claimed.OTHERS):
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
    part = audit_run(*CLAIM, source=PAPER).utilisation
    assert audit_run(*CLAIM, source=PAPER, most=part, least=part).verdict == "plausible"
    assert audit_run(*CLAIM, source=PAPER, most=part * 0.999, least=0.1).verdict == "impossible"
    assert audit_run(*CLAIM, source=PAPER, most=0.9, least=part * 1.001).verdict == "poor"


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
        audit_run(**dict(zip(names, (*CLAIM, PAPER), strict=True)) | changes)


REFUSED = [
    (lambda: Weak(GPT, 12), "gpus 12 and tokens 4096"),
    (lambda: Run("x", 0, 1, 1, 1), "parameters must be above 0"),
    (lambda: LoggedStep(1.0, 0, 1, 1.0), "tokens must be at least 1"),
    (
        lambda: RunAudit(Run("x", 1e9, 1e12, 10, 312e12), BLOOM_STEP),
        "10 GPU-hours are fewer than the steps alone take",
    ),
]

PROBES = by_name(
    Probe(
        NotesPlan,
        {},
        {
            "chip": Given(H100, before=RTX),
            "cards": Given(1024, before=2048),
            "stages": Given(40, before=80),
            "micro_batch": Given(4, before=8),
            "sequence": Given(2048, before=4096),
        },
        see=lambda plan: _numbers(plan_2048(plan)),
    ),
    Probe(plan_2048, {"plan": NotesPlan()}, {"plan": Given(NotesPlan(H100))}),
    Probe(compared, {"first": H100, "second": H200}, {"first": Given(RTX), "second": Given(RTX)}),
    Probe(
        Weak,
        WEAK,
        {"shape": Given(MODELS["gpt-3.6b"]), "link": Given(HDR)},
        see=lambda weak: [weak.over_ddp, weak.flop_per_s],
    ),
    Probe(
        fsdp_scaling,
        {"large": Weak(GPT), "small": Weak(GPT, 512, 512)},
        {"large": Given(Weak(GPT, 64)), "small": Given(Weak(GPT, 64, 512))},
    ),
    Probe(Run, RUN, see=lambda run: [run.name, run.flop, run.flop_per_s, run.mfu]),
    Probe(LoggedStep, STEP, see=lambda step: [step.flop_per_s, step.tokens]),
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
    Probe(
        audit_run,
        {
            "parameters": CLAIM[0],
            "tokens": CLAIM[1],
            "gpu_hours": CLAIM[2],
            "peak_flop_per_s": CLAIM[3],
            "source": "a",
            "most": MOST,
            "least": LEAST,
        },
        {"most": 0.25},
    ),
)

RECORDS = {
    "JudgedRun": (JudgedRun(1e14, 0.3, "plausible", "a"), JudgedRun(3e14, 1.2, "impossible", "b"))
}
