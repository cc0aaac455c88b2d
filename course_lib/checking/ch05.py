"""Exercises and quiz of chapter 5, FLOPs, roofline and MFU."""

from typing import Any

from course_lib.checking import (
    Question,
    exercise,
    expect_calls,
    expect_choice,
    expect_equal,
    expect_number,
    expect_parts,
    expect_raises,
)
from course_lib.checking.helpers import is_number, plain
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.models import MODELS

_GPT2 = MODELS["gpt2-124m"].parameters().total
_LLAMA3_70B = MODELS["llama3-70b"].parameters().total
_H100 = hardware.accelerator("H100-SXM")


def _fraction(answer: Any) -> Any:
    """A utilisation, also where it is given in percent: no utilisation is above 1."""
    number = plain(answer)
    return number / 100 if is_number(number) and 1 < number <= 100 else answer


@exercise(
    "5.1",
    kind="calculate",
    title="GPT-3",
    hints=("With recomputation the forward pass runs twice: 2 + 2 + 4.", "A day has 86,400 s."),
)
def _gpt3(answer: Any) -> None:
    total = flops.six_nd(175e9, 300e9, recompute="full")
    days = budget.training_run(total, 1024, 140e12).days
    because = "recomputation makes it 8 N D, and the 140 TFLOP/s count it as well"
    expect_parts(answer, 2, "FLOP and days")
    expect_number(answer[0], total, because, rel=1e-3, unit="FLOP")
    expect_number(answer[1], days, because, rel=1e-2, unit="days")  # the paper rounds to 34


@exercise(
    "5.2",
    kind="debug",
    title="196 Tflops",
    hints=("6 · parameters · tokens.", "Does 'how much' or 'how fast' have a '/s'?"),
)
def _tflops(answer: Any) -> None:
    expect_parts(answer, 3, "an amount, its unit and seconds")
    amount = flops.six_nd(1e9, 8 * 4096)
    expect_number(answer[0], amount, "6 · 10^9 parameters · 32,768 tokens", rel=1e-3, unit="FLOP")
    expect_choice(answer[1], "FLOP", "it is an amount, no rate", choices=("FLOP", "FLOP/s"))
    peak = hardware.accelerator("RTX4090").peak_flop_per_s
    expect_number(answer[2], amount / peak, "amount / rate", rel=1e-2, unit="s")


@exercise(
    "5.3",
    kind="debug",
    title="six per token",
    hints=("Six per token and *parameter*.", "12 · layers · hidden · sequence."),
)
def _six(answer: Any) -> None:
    scores = flops.palm_flop_per_token(0, layers=12, heads=12, head_dim=64, sequence=1024)
    expect_equal(
        answer,
        [6 * _GPT2, scores, 2],
        "6 N, and 12 · layers · hidden · sequence; 2 of the 6 are forward and 4 backward",
        wants="two amounts and a whole number",
        rel=1e-9,
    )


_STACK = "stack_flop(widths, tokens)"


@exercise(
    "5.4",
    kind="implement",
    title="the FLOP of a stack of linear layers",
    hints=("Each product is 2 · tokens · inputs · outputs.", "Two in the first layer, then 3."),
)
def _stack(function: Any) -> None:
    cases = [
        (([8, 16], 1), 512, "a first layer needs no gradient of the data: 2 products, not 3"),
        (([8, 16, 4], 1), 512 + 384, "the second layer makes 3 products of 2 · 16 · 4"),
        (([8, 16, 4], 10), 8960, "each token costs the same"),
        (([3, 5, 7, 2], 4), 4 * (4 * 15 + 6 * 35 + 6 * 14), "all later layers cost 6"),
    ]
    expect_calls(function, cases, signature=_STACK)
    expect_raises(function, ([8], 1), ValueError, "one width is no layer", signature=_STACK)


@exercise(
    "5.5",
    kind="debug",
    title="the 4090",
    hints=(
        "How many FLOP is one fused multiply-add?",
        "The notes' rate is too high by the factor by which their times are too short.",
    ),
)
def _ada(answer: Any) -> None:
    peak = hardware.tensor_core_peak(2.52e9, 64, 512) / 1e12
    expect_equal(
        answer,
        [peak, 330 / peak],
        "a fused multiply-add is 2 FLOP; 330 adds up in fp16",
        wants="TFLOP/s and a factor",
        rel=5e-3,
    )


@exercise(
    "5.6",
    kind="debug",
    title="H200",
    hints=("Ridge = peak / memory bandwidth.", "What did NVIDIA change: peak, NVLink, memory?"),
)
def _h200(answer: Any) -> None:
    expect_parts(answer, 3, "two ridges, and 'yes' or 'no'")
    for place, name in enumerate(("H100-SXM", "H200-SXM")):
        ridge = hardware.accelerator(name).ridge_flop_per_byte
        expect_number(answer[place], ridge, f"{name}: peak / memory bandwidth", rel=5e-3)
    expect_choice(answer[2], "no", "peak and NVLink are those of the H100", choices=("yes", "no"))


@exercise(
    "5.7",
    kind="debug",
    title="the 13.9 % trap",
    hints=("Section 5.5, reading a data sheet.", "GPU-hours · 3600 are GPU-seconds."),
)
def _trap(answer: Any) -> None:
    seconds = 6.4e6 * 3600
    mfu = budget.utilisation(
        flops.six_nd(_LLAMA3_70B, 15e12), seconds, gpus=1, peak_flop_per_s=_H100.peak_flop_per_s
    )
    because = "1979 is for sparse matrices, the dense peak is 989.4"
    expect_number(_fraction(answer), mfu, because, rel=5e-3)


@exercise(
    "5.8",
    kind="calculate",
    title="LLaMA 65B",
    hints=("Tokens / (tokens per second of all GPUs).", "6 N · 380 FLOP/s / 312 TFLOP/s."),
)
def _llama(answer: Any) -> None:
    run = budget.training_run_at(1.4e12, 2048, 380)
    mfu = budget.utilisation(flops.six_nd(65.2e9, 380), 1, 1, 312e12)
    wants = "days, GPU-hours and a fraction"
    expect_parts(answer, 3, wants)
    expect_equal(
        [*answer[:2], _fraction(answer[2])],
        [run.days, run.gpu_hours, mfu],
        "days = tokens / (380 · 2048) / 86,400; MFU = 6 N · 380 / peak",
        wants=wants,
        rel=5e-3,
    )


_PALM = (
    "palm_mfu(tokens_per_s, parameters, layers, heads, head_dim, sequence, chips, peak_flop_per_s)"
)


@exercise(
    "5.9",
    kind="implement",
    title="MFU as PaLM counts it",
    hints=(
        "Section 5.5 has this computation for PaLM 540B, by the course's functions.",
        "The tokens per second are those of all chips together.",
    ),
)
def _palm(function: Any) -> None:
    calls = [
        (238_300, (540.35e9, 118, 48, 256, 2048), (6144, 275e12), "PaLM 540B: 46.2 %"),
        (
            238_300,
            (540.35e9, 118, 48, 256, 8192),
            (6144, 275e12),
            "longer sequences mean more FLOP",
        ),
        (1000, (1e9, 10, 8, 64, 1024), (1, 312e12), "one chip"),
    ]
    cases = []
    for rate, model, chips, because in calls:
        parameters, layers, heads, width, sequence = model
        each = flops.palm_flop_per_token(
            parameters, layers=layers, heads=heads, head_dim=width, sequence=sequence
        )
        mfu = budget.utilisation(each * rate, 1, *chips)
        cases.append(((rate, *model, *chips), mfu, because))
    expect_calls(function, cases, signature=_PALM, rel=1e-6)


@exercise(
    "5.10",
    kind="predict",
    title="enough tokens",
    hints=("The ridge is 100 FLOP per byte.", "Few tokens: about as many FLOP per byte."),
)
def _enough_tokens(answer: Any) -> None:
    tokens = 1
    while hardware.matmul_intensity(tokens, 4096, 4096) < 100:
        tokens *= 2
    expect_number(
        answer,
        tokens,
        "64 tokens give 62 FLOP per byte, 128 give 120, and the ridge is 100",
    )


QUIZ = (
    Question(
        "Training costs 6 FLOP per weight and token. How many of them are the forward pass?",
        ("2", "3", "4"),
        answer=0,
        why="One product forward; two backward, for the weights and for the input.",
    ),
    Question(
        "A chip computes 100 TFLOP/s and reads 2 TB/s. How fast are 10 FLOP per byte?",
        ("100 TFLOP/s", "20 TFLOP/s", "50 TFLOP/s"),
        answer=1,
        why="Below the ridge of 50 it waits for memory: 10 · 2 TB/s.",
    ),
    Question(
        "You switch on full activation checkpointing. What happens to MFU and HFU?",
        ("both rise", "MFU falls, HFU hardly changes", "HFU falls"),
        answer=1,
        why="The step takes a third longer, and the extra FLOP count for HFU only.",
    ),
    Question(
        "A colleague's MFU counts all pairs of tokens, yours the causal half. Same program?",
        ("no, hers is faster", "it may be: only the convention differs", "no, yours is wrong"),
        answer=1,
        why="The seconds are the same; the numerator is a convention.",
    ),
    Question(
        "Which number belongs under the MFU of a bf16 run on H100 SXM?",
        ("1979 TFLOP/s", "989.4 TFLOP/s", "794.5 TFLOP/s"),
        answer=1,
        why="The dense peak. 1979 needs sparse weights; 794.5 is one benchmark's best matmul.",
    ),
)
