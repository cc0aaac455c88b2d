"""Exercises and quiz of chapter 5, FLOPs, roofline and MFU."""

from typing import Any

from course_lib.checking import (
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
    """A utilisation as a fraction; an answer above 1 is read as percent."""
    number = plain(answer)
    return number / 100 if is_number(number) and 1 < number <= 100 else answer


# GPUs, the FLOP/s that each reaches, USD an hour for each.
_OFFERS = {
    "A": (256, 0.45 * hardware.accelerator("A100-SXM-80GB").peak_flop_per_s, 1.40),
    "B": (64, 0.40 * _H100.peak_flop_per_s, 2.40),
    "C": (48, 0.42 * _H100.peak_flop_per_s, 2.20),
}


@exercise("5.1")
def _offers(answer: Any) -> None:
    expect_parts(answer, 3, "an offer, days and USD")
    total = flops.six_nd(MODELS["llama2-13b"].parameters().total, 1e12)
    runs = {
        name: budget.training_run(total, gpus, rate) for name, (gpus, rate, _) in _OFFERS.items()
    }
    usd = {name: budget.cost(run.gpu_hours, _OFFERS[name][2]) for name, run in runs.items()}
    best = min((name for name, run in runs.items() if run.days <= 40), key=usd.__getitem__)
    because = "it is the cheapest of those that take at most 40 days"
    expect_choice(answer[0], best, because, choices=tuple(_OFFERS))
    expect_number(answer[1], runs[best].days, "FLOP / (GPUs · MFU · peak)", rel=1e-2, unit="days")
    expect_number(answer[2], usd[best], "GPUs · hours · price", rel=1e-2)


@exercise("5.2")
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


@exercise("5.3")
def _five_counts(answer: Any) -> None:
    shape = MODELS["gpt2-124m"]
    full = flops.training_flops(shape)
    recomputed = flops.training_flops(shape, recompute="full")
    causal = flops.training_flops(shape, mask="causal")
    counts = {  # for one token
        "all pairs": full.model_flop_per_token,
        "6N": flops.six_nd(shape.parameters().total, 1),
        "forward only": full.forward_flop / shape.context,
        "recomputation": recomputed.hardware_flop / shape.context,
        "causal half": causal.model_flop_per_token,
    }
    expected = {int(flop): (name, _WHY[name]) for name, flop in counts.items()}
    each = ", ".join(repr(name) for name in _WHY)
    expect_entries(answer, expected, "a dict {FLOP: what was counted}", each=f"one of {each}")


@exercise("5.4")
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


@exercise("5.5")
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


@exercise("5.6")
def _h200(answer: Any) -> None:
    old, new = _H100, hardware.accelerator("H200-SXM")

    def gain(tokens: int) -> float:
        """Ratio of attainable FLOP/s, H200 over H100, for a product with 4096 × 4096 weights."""
        intensity = hardware.matmul_intensity(tokens, 4096, 4096)
        return new.attainable_flop_per_s(intensity) / old.attainable_flop_per_s(intensity)

    between = "228 FLOP per byte wait for the H100's memory, but for the peak of the H200"
    memory = new.memory_bytes_per_s / old.memory_bytes_per_s
    network = new.inside.bytes_per_s / old.inside.bytes_per_s
    expected = {
        "8192 tokens times the matrix": (gain(8192), "it is limited by the peak on both"),
        "256 tokens times the matrix": (gain(256), between),
        "1 token times the matrix": (gain(1), "1 FLOP per byte waits for memory on both"),
        "AdamW's update": (memory, "it reads and writes states, and hardly computes"),
        "an all-reduce over NVLink": (network, "NVLink is that of the H100"),
    }
    expect_entries(answer, expected, "a dict of factors", each="a factor", rel=5e-3)


@exercise("5.7")
def _trap(answer: Any) -> None:
    seconds = 6.4e6 * 3600
    total = flops.six_nd(MODELS["llama3-70b"].parameters().total, 15e12)
    mfu = budget.utilisation(total, seconds, 1, _H100.peak_flop_per_s)
    because = "1979 is for sparse matrices, the dense peak is 989.4"
    expect_number(_fraction(answer), mfu, because, rel=5e-3)


@exercise("5.8")
def _llama(answer: Any) -> None:
    run = budget.training_run_at(1.4e12, 2048, 380)
    mfu = budget.utilisation(flops.six_nd(65.2e9, 380), 1, 1, 312e12)
    wants = "days, GPU-hours and a fraction"
    expect_parts(answer, 3, wants)
    because = "days = tokens / (380 · 2048) / 86,400; MFU = 6 N · 380 / peak"
    right = (run.days, because, 5e-3, "days"), (run.gpu_hours, because, 5e-3, "h")
    expect_numbers([*answer[:2], _fraction(answer[2])], wants, *right, (mfu, because, 5e-3))


@exercise("5.9")
def _palm(function: Any) -> None:
    palm, chips = (540.35e9, 118, 48, 256, 18_432), (6144, 275e12)
    calls = [
        (238_300, (*palm, 2048), chips, "PaLM 540B: 46.2 %"),
        (238_300, (*palm, 8192), chips, "longer sequences mean more FLOP"),
        (1000, (1e9, 10, 8, 64, 768, 1024), (1, 312e12), "one chip"),
    ]
    cases = []
    for rate, model, machine, because in calls:
        parameters, layers, heads, width, _, sequence = model
        each = flops.palm_flop_per_token(
            parameters, layers=layers, heads=heads, head_dim=width, sequence=sequence
        )
        mfu = budget.utilisation(each * rate, 1, *machine)
        cases.append(((rate, *model, *machine), mfu, because))
    of_model = "tokens_per_s, parameters, layers, heads, head_dim, hidden, sequence"
    signature = f"palm_mfu({of_model}, chips, peak_flop_per_s)"
    expect_calls(function, cases, signature=signature, rel=1e-6)


@exercise("5.10")
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
