"""Audit A: the notes' numbers follow from the notes' terms, and the right ones from chapter 13."""

import pytest
from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.plan_2048 import NotesPlan, compared, plan_2048
from course_lib.theory.inputs.hardware import accelerator
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
)
