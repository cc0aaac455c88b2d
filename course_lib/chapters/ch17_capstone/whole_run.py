"""Audit D: how well a whole training run used its GPUs, from what its report and its log say."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.audits.claim import Audit, Claim
from course_lib.theory.compute.budget import HOUR_S, achieved_flop_per_s, utilisation
from course_lib.theory.compute.flops import megatron_flop, six_nd
from course_lib.theory.inputs.hardware import accelerator
from course_lib.validation import number, text, whole


@dataclass(frozen=True)
class Run:
    """What a report says of a run: parameters, tokens and GPU-hours, on GPUs of a peak."""

    name: str
    parameters: float
    tokens: float
    gpu_hours: float
    peak_flop_per_s: float

    def __post_init__(self) -> None:
        text("name", self.name)
        for name in ("parameters", "tokens", "gpu_hours", "peak_flop_per_s"):
            number(name, getattr(self, name), above=0)

    @property
    def flop(self) -> float:
        """6·N·D: model FLOP without attention's scores."""
        return six_nd(self.parameters, self.tokens)

    @property
    def flop_per_s(self) -> float:
        """Model FLOP in a second on one GPU, with all hours that were paid: failures, restarts."""
        return achieved_flop_per_s(self.flop, self.gpu_hours * HOUR_S)

    @property
    def mfu(self) -> float:
        """That rate over the dense peak."""
        return utilisation(self.flop, self.gpu_hours * HOUR_S, 1, self.peak_flop_per_s)


@dataclass(frozen=True)
class LoggedStep:
    """One update from a run's log: seconds, tokens, GPUs, and the FLOP that the hardware did."""

    step_s: float
    tokens: int
    gpus: int
    hardware_flop: float

    def __post_init__(self) -> None:
        number("step_s", self.step_s, above=0)
        whole("tokens", self.tokens)
        whole("gpus", self.gpus)
        number("hardware_flop", self.hardware_flop, above=0, most=1e30)

    @property
    def flop_per_s(self) -> float:
        """Hardware FLOP in a second on one GPU, recomputation counted."""
        return achieved_flop_per_s(self.hardware_flop, self.step_s, self.gpus)


@checked
@dataclass(frozen=True)
class RunAudit:
    """The MFU of a run as a product: HFU of its steps · useful part · kept hours."""

    run: Run
    step: LoggedStep

    def __post_init__(self) -> None:
        if self.kept > 1:
            raise ValueError(
                f"{self.run.gpu_hours:,.0f} GPU-hours are fewer than the steps alone take: check "
                "step_s, tokens and gpu_hours"
            )

    @property
    def hfu(self) -> float:
        """Part of the peak at which the hardware worked while it stepped."""
        return self.step.flop_per_s / self.run.peak_flop_per_s

    @property
    def useful(self) -> float:
        """Part of that work which 6·N·D counts: no recomputation, no scores."""
        return six_nd(self.run.parameters, self.step.tokens) / self.step.hardware_flop

    @property
    def kept(self) -> float:
        """Part of the hours paid for that steps of this length would have taken."""
        steps = self.run.tokens / self.step.tokens
        return steps * self.step.step_s * self.step.gpus / (self.run.gpu_hours * HOUR_S)

    def explain(self) -> str:
        """The three factors and their product."""
        run = self.run
        return "\n".join(
            [
                f"{run.name}: 6ND = {run.flop / 1e24:.3g} × 10²⁴ FLOP in "
                f"{run.gpu_hours:,.0f} GPU-hours",
                f"steps: {self.step.flop_per_s / 1e12:.1f} of {run.peak_flop_per_s / 1e12:.0f} "
                f"TFLOP/s, HFU {self.hfu:.1%}",
                f"useful: {self.useful:.1%} of that is in 6ND, the rest recomputed or scores",
                f"kept: {self.kept:.1%} of the hours were steps of this length",
                f"MFU of the run = {self.hfu:.3f} · {self.useful:.3f} · {self.kept:.3f} = "
                f"{run.mfu:.1%}, {run.flop_per_s / 1e12:.1f} TFLOP/s",
            ]
        )


_A100 = accelerator("A100-SXM-80GB").peak_flop_per_s
_H100 = accelerator("H100-SXM").peak_flop_per_s

# Parameters, tokens and hours: BigScience 2022, arXiv:2211.05100, table 3 and section 3.4.1.
BLOOM = Run("BLOOM 176B", 176_247_271_424, 366e9, 1_082_990, _A100)
# The log of 18 March 2022: 105.22 s an update of 2048 · 2048 tokens on 384 GPUs, all activations
# recomputed (github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles.md).
BLOOM_STEP = LoggedStep(
    105.22,
    2048 * 2048,
    384,
    megatron_flop(2048, 2048, layers=70, hidden=14336, vocab=250_880),
)
# GPU-hours of others: LLaMA, arXiv:2302.13971, table 15; github.com/meta-llama/llama,
# MODEL_CARD.md; Llama 3.1's model card, with tokens of arXiv:2407.21783, section 3.
OTHERS = (
    Run("LLaMA 65B", 65.2e9, 1.4e12, 1_022_362, _A100),
    Run("LLaMA-2 70B", 68.98e9, 2e12, 1_720_320, _A100),
    Run("Llama 3.1 405B", 405.85e9, 15.6e12, 30_840_000, _H100),
)


@checked
def bloom(run: Run = BLOOM, step: LoggedStep = BLOOM_STEP) -> Audit:
    """What BLOOM's paper and log say of its speed."""
    audit = RunAudit(run, step)
    return Audit(
        "BigScience 2022, arXiv:2211.05100, section 3.4",
        (
            Claim(
                "149 TFLOP/s in the log",
                149.02,
                step.flop_per_s / 1e12,
                audit.hfu * audit.useful * run.peak_flop_per_s / 1e12,
                "the log counts what is computed twice; 6ND does not",
                "TFLOP/s",
            ),
            Claim(
                "156 TFLOP/s at best, half of the peak",
                0.5,
                156e12 / run.peak_flop_per_s,
                156e12 * audit.useful / run.peak_flop_per_s,
                "half of the peak with recomputation (HFU), less without (MFU)",
                "of the peak",
            ),
            Claim(
                "1,082,990 GPU-hours are 3.5 months of 384 GPUs",
                3.5,
                run.gpu_hours / step.gpus / 24 / 30.44,
                run.gpu_hours * audit.kept / step.gpus / 24 / 30.44,
                "the hours are 3.9 months; the steps alone would take the 3.5",
                "months",
            ),
        ),
    )
