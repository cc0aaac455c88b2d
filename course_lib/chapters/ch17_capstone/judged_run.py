"""A run's GPU-hours between two limits: too fast to be true, and too slow to be good."""

from dataclasses import dataclass

from course_lib.chapters.ch17_capstone.whole_run import Run
from course_lib.validation import fraction, text

# No training is faster than the best large matmul: 271.2 of an A100's 312 TFLOP/s
# (github.com/stas00/ml-engineering, compute/accelerator).
MOST = 0.87
# A convention. Published runs of dense models on thousands of GPUs lie between 0.28 and 0.57.
LEAST = 0.20


@dataclass(frozen=True)
class JudgedRun:
    """Model FLOP per second on one GPU, that over the peak, and the verdict with its source."""

    flop_per_s: float
    utilisation: float
    verdict: str  # "impossible", "poor" or "plausible"
    source: str


def audit_run(
    parameters: float,
    tokens: float,
    gpu_hours: float,
    peak_flop_per_s: float,
    *,
    source: str,
    most: float = MOST,
    least: float = LEAST,
) -> JudgedRun:
    """6·N·D over GPU-seconds and peak: "impossible" above `most`, "poor" below `least`.

    `parameters` of a mixture of experts: those that a token uses. `peak_flop_per_s`: dense.
    Attention's scores, failures and restarts are not counted apart. Raises ValueError for
    quantities that are not positive, an empty source and limits that are no fractions.
    """
    text("source", source)
    if not source.strip():
        raise ValueError("source is empty: name where the numbers of the claim are printed")
    fraction("most", most)
    fraction("least", least)
    if least > most:
        raise ValueError(f"least {least} is above most {most}: no run would be plausible")
    run = Run(source, parameters, tokens, gpu_hours, peak_flop_per_s)
    verdict = "plausible"
    if run.mfu > most:
        verdict = "impossible"
    elif run.mfu < least:
        verdict = "poor"
    return JudgedRun(run.flop_per_s, run.mfu, verdict, source)
