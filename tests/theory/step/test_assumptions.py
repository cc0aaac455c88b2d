"""Assumptions: what each changes, and a sentence for those that cannot be."""

import pytest
from every import every
from probes import CLUSTER, DENSE, FULL, OFFLOADED, PLAIN, SLOW_LINK, STANDARD, Probe

from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.step_time import step_time


@every(
    ("wrong", "sentence"),
    [
        (dict(layer_efficiency=0), "layer_efficiency must be above 0, got 0"),
        (dict(layer_efficiency=1.5), "layer_efficiency must be at most"),
        (dict(touches=-1), "touches must be at least 0, got -1"),
        (dict(touches=float("nan")), "touches must be finite"),
        (dict(mask="casual"), "did you mean 'causal'"),
        (dict(overlap={"td": 0.5}), "overlap axis 'td' is not one of"),
        (dict(overlap={"tp": 2}), r"overlap\['tp'\] must be at most"),
    ],
)
def test_bad_assumptions_get_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Assumptions(**wrong)


def seen(assumptions):
    """Step times with context and data parallelism, with and without an offloaded optimizer."""
    jobs = [
        Job(DENSE, recipe, Layout(dp=2, cp=2), CLUSTER, sequence=512)
        for recipe in (PLAIN, OFFLOADED)
    ]
    return [step_time(job, assumptions).leaves() for job in jobs]


def test_a_line_names_each_axis_and_what_is_not_the_default():
    guess = Assumptions(overlap={"cp": 0.25}, touches=6, mask="full")
    hidden = "tp 0%, cp 25%, ep 0%, dp 100%, pp 0%"
    assert guess.explain() == f"of messages hide at most {hidden}; touches 6; mask full"


PROBES = {
    "Assumptions": Probe(
        Assumptions,
        {},
        {
            "layer_efficiency": 0.5,
            "attention_efficiency": 0.5,
            "touches": 1,
            "mask": "full",
            "overlap": {"dp": 0.0},
            "policy": CommunicationPolicy(),
            "host_link": SLOW_LINK,
        },
        see=seen,
    ),
    "Assumptions.attention_mask": Probe(
        Assumptions().attention_mask, {"recipe": PLAIN}, {"recipe": STANDARD}
    ),
    "Assumptions.flop_conventions": Probe(
        Assumptions().flop_conventions, {"recipe": PLAIN}, {"recipe": FULL}
    ),
}
