"""Exercises and quiz of chapter 5, FLOPs, roofline and MFU."""

from typing import Any

from course_lib.checking import (
    Question,
    exercise,
    expect_calls,
    expect_choice,
    expect_entries,
    expect_number,
    expect_numbers,
    expect_parts,
    expect_raises,
)
from course_lib.checking.helpers import is_number, plain
from course_lib.theory.compute import budget, flops
from course_lib.theory.inputs import hardware
from course_lib.theory.inputs.models import MODELS

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
    of_days = (days, because, 1e-2, "days")  # the paper rounds to 34
    expect_numbers(answer, "FLOP and days", (total, because, 1e-3, "FLOP"), of_days)


@exercise(
    "5.2",
    kind="debug",
    title="196 Tflops",
    hints=(
        "Does 'how much' or 'how fast' have a '/s'?",
        "Each parameter meets each token, forward and backward: 6 · parameters · tokens.",
    ),
)
def _tflops(answer: Any) -> None:
    expect_parts(answer, 3, "an amount, its unit and seconds")
    amount = flops.six_nd(1e9, 8 * 4096)
    expect_number(answer[0], amount, "6 · 10^9 parameters · 32,768 tokens", rel=1e-3, unit="FLOP")
    expect_choice(answer[1], "FLOP", "it is an amount, no rate", choices=("FLOP", "FLOP/s"))
    peak = hardware.accelerator("RTX4090").peak_flop_per_s
    expect_number(answer[2], amount / peak, "amount / rate", rel=1e-2, unit="s")


_WHY = {
    "6N": "it is 6 times 124,439,808",
    "all pairs": "6 for each weight of a matrix, and 12 · layers · hidden · 1024 for the scores",
    "causal half": "it has half as many FLOP for the scores as the count of all pairs",
    "recomputation": "it is 1.24 times the count of all pairs: the head is not computed again",
    "forward only": "it is a third of the count of all pairs",
}


@exercise(
    "5.3",
    kind="debug",
    title="five counts of one model",
    hints=(
        "One of them knows nothing but the number of parameters. Start from it.",
        "Divide the others by one another: which counts are 1/3 and 1.24 of which?",
        "flops.training_flops(models.MODELS['gpt2-124m'], mask=…, recompute=…) counts them all.",
    ),
)
def _five_counts(answer: Any) -> None:
    shape = MODELS["gpt2-124m"]
    full = flops.training_flops(shape)
    again = flops.training_flops(shape, recompute="full")
    causal = flops.training_flops(shape, mask="causal")
    counts = {  # for one token
        "all pairs": full.model_flop_per_token,
        "6N": flops.six_nd(shape.parameters().total, 1),
        "forward only": full.forward_flop / shape.context,
        "recomputation": again.hardware_flop / shape.context,
        "causal half": causal.model_flop_per_token,
    }
    right = {int(flop): (by, _WHY[by]) for by, flop in counts.items()}
    each = ", ".join(repr(by) for by in _WHY)
    expect_entries(answer, right, "a dict {FLOP: what was counted}", each=f"one of {each}")


@exercise(
    "5.4",
    kind="implement",
    title="the FLOP of a stack of linear layers",
    hints=(
        "How many matrix products does a layer need, and which one does the first layer not need?",
        "Two in the first layer, then 3, each of 2 · tokens · inputs · outputs.",
    ),
)
def _stack(function: Any) -> None:
    signature = "stack_flop(widths, tokens)"
    cases = [
        (([8, 16], 1), 512, "a first layer needs no gradient of the data: 2 products, not 3"),
        (([8, 16, 4], 1), 512 + 384, "the second layer makes 3 products of 2 · 16 · 4"),
        (([8, 16, 4], 10), 8960, "each token costs the same"),
        (([3, 5, 7, 2], 4), 4 * (4 * 15 + 6 * 35 + 6 * 14), "all later layers cost 6"),
    ]
    expect_calls(function, cases, signature=signature)
    expect_raises(function, ([8], 1), ValueError, "one width is no layer", signature=signature)


@exercise(
    "5.5",
    kind="debug",
    title="four proud teams",
    hints=(
        "FLOP of a token · tokens per second / peak is a utilisation. Which FLOP did each take?",
        "hardware_flop of flops.training_flops(…, mask=…, recompute=…) is for a whole sequence.",
    ),
)
def _teams(answer: Any) -> None:
    llama, peak = MODELS["llama2-7b"], hardware.accelerator("A100-SXM-80GB").peak_flop_per_s
    pairs, half = (flops.training_flops(llama, mask=mask) for mask in ("full", "causal"))
    again = flops.training_flops(llama, recompute="full").hardware_flop / llama.context
    causal = "half of the pairs: 42.9 GFLOP a token, so a lower MFU may be the faster run"
    busy = "HFU counts the second forward pass, 61.2 GFLOP a token: busy, and slower than all"
    six_n = flops.six_nd(llama.parameters().total, 1)
    expect_numbers(
        answer,
        "the tokens per second of four teams",
        (0.50 * peak / pairs.model_flop_per_token, "MFU by all pairs: 46.1 GFLOP"),
        (0.48 * peak / half.model_flop_per_token, causal),
        (0.62 * peak / again, busy),
        (0.43 * peak / six_n, "6N leaves out the scores: 40.4 GFLOP"),
        rel=5e-3,
        unit="tokens/s",
    )


@exercise(
    "5.6",
    kind="debug",
    title="what is faster on an H200?",
    hints=(
        "What did NVIDIA change: the peak, NVLink, or the memory? And what waits for which?",
        "Compare the FLOP per byte of each product with both ridges: one of them lies between.",
    ),
)
def _h200(answer: Any) -> None:
    old, new = _H100, hardware.accelerator("H200-SXM")

    def gain(tokens: int) -> float:
        """By how much the roofline of a product of 4096 × 4096 weights is higher."""
        intensity = hardware.matmul_intensity(tokens, 4096, 4096)
        return new.attainable_flop_per_s(intensity) / old.attainable_flop_per_s(intensity)

    between = "228 FLOP per byte wait for the H100's memory, but for the peak of the H200"
    memory = new.memory_bytes_per_s / old.memory_bytes_per_s
    network = new.inside.bytes_per_s / old.inside.bytes_per_s
    right = {
        "8192 tokens times the matrix": (gain(8192), "it is limited by the peak on both"),
        "256 tokens times the matrix": (gain(256), between),
        "1 token times the matrix": (gain(1), "1 FLOP per byte waits for memory on both"),
        "AdamW's update": (memory, "it reads and writes states, and hardly computes"),
        "an all-reduce over NVLink": (network, "NVLink is that of the H100"),
    }
    expect_entries(answer, right, "a dict of factors", each="a factor", rel=5e-3)


@exercise(
    "5.7",
    kind="debug",
    title="the 13.9 % trap",
    hints=("Section 5.5, reading a data sheet.", "GPU-hours · 3600 are GPU-seconds."),
)
def _trap(answer: Any) -> None:
    seconds = 6.4e6 * 3600
    total = flops.six_nd(MODELS["llama3-70b"].parameters().total, 15e12)
    mfu = budget.utilisation(total, seconds, 1, _H100.peak_flop_per_s)
    because = "1979 is for sparse matrices, the dense peak is 989.4"
    expect_number(_fraction(answer), mfu, because, rel=5e-3)


@exercise(
    "5.8",
    kind="calculate",
    title="LLaMA 65B",
    hints=(
        "How many tokens go through all 2048 GPUs in a second? For the MFU one GPU is enough.",
        "6 N · 380 FLOP/s / 312 TFLOP/s.",
    ),
)
def _llama(answer: Any) -> None:
    run = budget.training_run_at(1.4e12, 2048, 380)
    mfu = budget.utilisation(flops.six_nd(65.2e9, 380), 1, 1, 312e12)
    wants = "days, GPU-hours and a fraction"
    expect_parts(answer, 3, wants)
    because = "days = tokens / (380 · 2048) / 86,400; MFU = 6 N · 380 / peak"
    right = (run.days, because, 5e-3, "days"), (run.gpu_hours, because, 5e-3, "h")
    expect_numbers([*answer[:2], _fraction(answer[2])], wants, *right, (mfu, because, 5e-3))


@exercise(
    "5.9",
    kind="implement",
    title="MFU as PaLM counts it",
    hints=(
        "Section 5.5 has this computation for PaLM 540B, by the course's functions.",
        "Scores multiply queries with keys. How wide are these, and what is h in section 5.2?",
    ),
)
def _palm(function: Any) -> None:
    palm, chips = (540.35e9, 118, 48, 256), (6144, 275e12)
    calls = [
        (238_300, (*palm, 2048), chips, "PaLM 540B: 46.2 %"),
        (238_300, (*palm, 8192), chips, "longer sequences mean more FLOP"),
        (1000, (1e9, 10, 8, 64, 1024), (1, 312e12), "one chip"),
    ]
    cases = []
    for rate, model, own, because in calls:
        parameters, layers, heads, width, sequence = model
        each = flops.palm_flop_per_token(
            parameters, layers=layers, heads=heads, head_dim=width, sequence=sequence
        )
        mfu = budget.utilisation(each * rate, 1, *own)
        cases.append(((rate, *model, *own), mfu, because))
    of_model = "tokens_per_s, parameters, layers, heads, head_dim, sequence"
    signature = f"palm_mfu({of_model}, chips, peak_flop_per_s)"
    expect_calls(function, cases, signature=signature, rel=1e-6)


@exercise(
    "5.10",
    kind="predict",
    title="enough tokens",
    hints=(
        "The ridge is 100 FLOP per byte. Few tokens: about as many FLOP per byte.",
        "Inputs and outputs grow with the tokens. What does T / (1 + 2T/h) tend to?",
    ),
)
def _enough_tokens(answer: Any) -> None:
    def enough(width: int) -> int:
        powers = (2**power for power in range(30))
        fits = (t for t in powers if hardware.matmul_intensity(t, width, width) >= 100)
        return next(fits, 0)

    reasons = {
        4096: "64 tokens give 62 FLOP per byte, 128 give 120, and the ridge is 100",
        256: "256 tokens give 85 FLOP per byte, 512 give 102: inputs and outputs weigh as much",
        128: "it never exceeds 128 / 2 = 64 FLOP per byte",
    }
    rows = ((enough(width), because) for width, because in reasons.items())
    expect_numbers(answer, "three numbers of tokens", *rows)


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
        "64 tokens go through a layer of 8192 × 8192 weights in bf16. How many FLOP per byte?",
        ("about 64", "about 4096", "about 8192"),
        answer=0,
        why="The weights are read once for all tokens, and each token adds about 1 FLOP per byte.",
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
