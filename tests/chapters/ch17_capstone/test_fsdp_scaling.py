"""Audit C: FSDP beside DDP, against what its paper measured."""

from probes import Given, Probe, by_name

from course_lib.chapters.ch17_capstone.fsdp_scaling import Weak, fsdp_scaling
from course_lib.theory.inputs.hardware import HDR
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.step.assumptions import Assumptions

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
REFUSED = [
    (lambda: Weak(GPT, 12), "gpus 12 and tokens 4096"),
]
PROBES = by_name(
    Probe(
        Weak,
        WEAK,
        {
            "shape": Given(MODELS["gpt-3.6b"]),
            "gpus": 64,
            "tokens": 4096,
            "sequence": 1024,
            "link": Given(HDR),
        },
        see=lambda weak: [weak.over_ddp, weak.flop_per_s],
    ),
    Probe(
        Weak(**WEAK).step,
        {"zero_stage": 0},
        {"zero_stage": 3, "assumptions": Assumptions(touches=1)},
    ),
    Probe(
        fsdp_scaling,
        {"large": Weak(GPT), "small": Weak(GPT, 512, 512)},
        {"large": Given(Weak(GPT, 64)), "small": Given(Weak(GPT, 64, 512)), "gpu_hour_usd": 3.0},
    ),
)
