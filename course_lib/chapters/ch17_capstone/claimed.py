"""Audits A, C and D: a plan for 2048 GPUs, the speed of FSDP, runs judged by their GPU-hours."""

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from course_lib.checked import checked
from course_lib.theory.audits.claim import Audit, Claim
from course_lib.theory.compute.budget import (
    HOUR_S,
    achieved_flop_per_s,
    cost,
    saved_fraction,
    throughput_gain,
    utilisation,
)
from course_lib.theory.compute.flops import megatron_flop, six_nd
from course_lib.theory.inputs.hardware import (
    NETWORK_LATENCY_S,
    Accelerator,
    Cluster,
    Link,
    accelerator,
)
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.network import collectives
from course_lib.theory.pipelines.bubble import bubble_over_ideal
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.step_time import StepTime, step_time
from course_lib.validation import fraction, number, text, whole

_A100, _H100, _RTX4090 = map(accelerator, ("A100-SXM-80GB", "H100-SXM", "RTX4090"))


def _audit(source: str, *claims: tuple[Any, ...]) -> Audit:
    """An audit of claims given as rows: words, said, own terms, found, because, unit, within."""
    return Audit(source, tuple(Claim(*row) for row in claims))


# --- Audit A: a plan for 2048 cards --------------------------------------------------------------

PLAN_SOURCE = "GPU算力评估, study notes on training and inference (cited as 004)"
_LLAMA = MODELS["llama2-70b"]
# The plan: cards, stages of one layer, sequences per micro-batch, tokens per sequence.
_CARDS, _STAGES, _MICRO_BATCH, _SEQUENCE = 2048, 80, 8, 4096
_NOTES_FLOP_PER_S = 330e12
# "4M tokens" (github.com/meta-llama/llama, MODEL_CARD.md), read as 1024 of its sequences.
_LLAMA_BATCH_TOKENS = 1024 * 4096
# Activation bytes of a layer per token and hidden unit: all, 10 + 24 as in the notes; bf16 input.
_KEPT_BYTES, _INPUT_BYTES = 34, 2


def held(stages: int) -> float:
    """Activations on the first 1F1B stage over those of the whole model for one micro-batch."""
    return Layout(pp=stages, accumulation=2 * stages).in_flight(0)[0] / stages


def plan_2048() -> Audit:
    """The audit of the notes' claims about 2048 cards, in their order."""
    replicas, tokens = _CARDS / _STAGES, _MICRO_BATCH * _SEQUENCE
    layer = _LLAMA.layer_parameters(1).total
    notes_layer_s = six_nd(1e9, tokens) / _NOTES_FLOP_PER_S
    layer_s = six_nd(layer, tokens) / _RTX4090.peak_flop_per_s
    bubble = bubble_over_ideal(_STAGES, _STAGES)
    link = _RTX4090.inside
    exchange_s = collectives.sent_bytes("all-reduce", 4 * layer, 2) / link.bytes_per_s
    memory = (
        ("80 stages keep 160 times the activations", 160, 2 * _STAGES, held(_STAGES),
         "1F1B keeps p micro-batches of L/p layers, whatever p is", "times"),
        ("with 8 groups of 10 layers still 16 times", 16, 2 * _STAGES / 10,
         held(_STAGES) * _INPUT_BYTES / _KEPT_BYTES + 1 / _STAGES,
         "a stage keeps its layer's input for p micro-batches, and one layer is whole at a time",
         "times"),
        ("full recomputation: 3240 layers instead of 80, 40 times the work",
         40, (_LLAMA.layers + 1) / 2, six_nd(1, 1, "full") / six_nd(1, 1),
         "each layer keeps its own input, and is computed once more", "times"),
        ("1850 GB need 78 cards of 24 GB",
         78, ceil(1850 / 24), 8 * ceil(1850e9 / _RTX4090.memory_bytes / 8),
         "a lower bound, here in whole nodes of 8; a plan names its degrees", "cards"),
    )  # fmt: skip
    time = (
        ("a micro-batch takes 0.6 s in a layer", 0.6, notes_layer_s, layer_s,
         f"0.856 billion parameters at {_RTX4090.peak_flop_per_s / 1e12:g} TFLOP/s", "s"),
        ("a training step takes 48 s",
         48, _STAGES * notes_layer_s, _STAGES * layer_s * (1 + bubble),
         "the peak, the layer's size, and a bubble as long as the work", "s"),
        ("4 GB of gradients travel in 0.12 s", 0.12, 4e9 / 32e9, exchange_s,
         f"3.42 GB over {link.name}, one way", "s", 0.1),
        ("with 80 micro-batches 80 stages are full", 1.0, None, 1 / (1 + bubble),
         "80 micro-batches in 80 stages: 79 of 159 slots are bubble", "of the time"),
    )  # fmt: skip
    batch = (
        ("2048 cards exchange gradients with each other", 2048, _CARDS, replicas,
         "only copies of the same layer do, and 0.6 of a copy is none", "cards"),
        ("the batch is 16384 sequences",
         16384, _CARDS * _MICRO_BATCH, replicas * _STAGES * _MICRO_BATCH,
         "copies · micro-batches · their size, with as many micro-batches as stages", "sequences"),
        ("such a batch is fairly large", 1.0, None, _CARDS * tokens / _LLAMA_BATCH_TOKENS,
         "in tokens, over the 4 million of LLaMA-2's own updates", "times"),
    )  # fmt: skip
    return _audit(PLAN_SOURCE, *memory, *time, *batch)


def compared(first: Accelerator, second: Accelerator) -> Claim:
    """The claim that faster memory raises the ratio of computing to communication.

    `said` and `own_terms`: memory bandwidth of `second` over `first`; `found`: the same ratio of
    FLOP per byte of the link, which is what the notes' ratio is about.
    """
    memory = second.memory_bytes_per_s / first.memory_bytes_per_s
    per_byte = [chip.peak_flop_per_s / chip.inside.bytes_per_s for chip in (first, second)]
    return Claim(
        "faster memory raises the ratio of computing to communication",
        memory,
        memory,
        per_byte[1] / per_byte[0],
        f"peak over link; the memory's ridge goes from {first.ridge_flop_per_byte:.0f} to "
        f"{second.ridge_flop_per_byte:.0f} FLOP per byte",
        "times",
    )


# --- Audit C: the speed of FSDP ------------------------------------------------------------------

FSDP_SOURCE = "Zhao et al. 2023, arXiv:2304.11277, abstract and section 5; YaFSDP's README, 2024"
# The paper's cluster: 8 A100 in a node and 2 Tb/s of RoCE (section 5.1), so 250 Gb/s for each GPU.
ROCE = Link("RoCE, 2 Tb/s a node", 2e12 / 8 / 8, NETWORK_LATENCY_S)
_MONTH_H = 730
_USD_AN_HOUR = 2.0  # what DeepSeek-V3 assumes, arXiv:2412.19437, table 1


@checked
@dataclass(frozen=True)
class Weak:
    """Weak scaling of data parallelism: each of `gpus` A100 gets `tokens` as whole sequences.

    All activations are recomputed, as in the paper's larger models. Raises ValueError unless gpus
    is a multiple of 8 and tokens one of sequence.
    """

    shape: TransformerShape
    gpus: int = 8
    tokens: int = 4096
    sequence: int = 512

    def __post_init__(self) -> None:
        for name in ("gpus", "tokens", "sequence"):
            whole(name, getattr(self, name), most=10**7)
        if self.gpus % 8 or self.tokens % self.sequence:
            raise ValueError(
                f"gpus {self.gpus} and tokens {self.tokens} must be whole nodes of 8 and whole "
                f"sequences of {self.sequence}: take multiples"
            )

    def step(self, zero_stage: int, assumptions: Assumptions | None = None) -> StepTime:
        """The predicted step under DDP (`zero_stage` 0) or FSDP (3)."""
        batch = self.tokens // self.sequence
        layout = Layout(dp=self.gpus, zero_stage=zero_stage, micro_batch=batch)
        cluster = Cluster(_A100, self.gpus // 8, between=ROCE)
        job = Job(self.shape, Recipe(recompute="full"), layout, cluster, self.sequence)
        return step_time(job, assumptions)

    @property
    def flop_per_s(self) -> float:
        """Hardware FLOP per second and GPU under FSDP, as the paper counts them."""
        step = self.step(3)
        return step.hardware_flop / step.total_s / step.gpus

    @property
    def over_ddp(self) -> float:
        """Step time under FSDP over that under DDP, whether or not it fits into memory."""
        return self.step(3).total_s / self.step(0).total_s


def fsdp_scaling(large: Weak, small: Weak) -> Audit:
    """The audit of FSDP's claims; `large`: work per GPU as in the paper's runs, `small`: little."""
    hours = 150 * _MONTH_H
    wide, narrow = (Weak(MODELS["gpt3-175b"], gpus, 2048, 2048).flop_per_s for gpus in (512, 128))
    claims = (
        ("FSDP is comparable to DDP", 1.0, large.over_ddp, small.over_ddp,
         f"{small.tokens:,} tokens on each of {small.gpus:,} GPUs do not hide its messages",
         "times DDP's step", 0.1),
        ("near-linear: 175B on 512 GPUs as fast per GPU as on 128", 1.0, wide / narrow, 0.93,
         "T5-11B from 8 to 512 GPUs lost 7 % (the paper's own section 5.4)", "times"),
        ("YaFSDP trains 26 % faster",
         0.26, saved_fraction(9.76, 7.17), throughput_gain(9.76, 7.17),
         "26 % less time, in the best of 16 rows, is 36 % more throughput"),
        ("150 GPUs saved are 0.5 million dollars a month", 0.5e6, None, cost(hours, _USD_AN_HOUR),
         f"at {_USD_AN_HOUR:g} USD an hour; the claim takes {0.5e6 / hours:.2f} or more", "USD"),
    )  # fmt: skip
    return _audit(FSDP_SOURCE, *claims)


# --- Audit D: runs by their GPU-hours ------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A published training run: parameters, tokens, GPU-hours, and the peak FLOP/s of its GPUs."""

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
        """Model FLOP, 6·N·D, without attention scores."""
        return six_nd(self.parameters, self.tokens)

    @property
    def flop_per_s(self) -> float:
        """Model FLOP per second and GPU over all paid hours, including failures and restarts."""
        return achieved_flop_per_s(self.flop, self.gpu_hours * HOUR_S)

    @property
    def mfu(self) -> float:
        """Model FLOP utilization: `flop_per_s` over the dense peak."""
        return utilisation(self.flop, self.gpu_hours * HOUR_S, 1, self.peak_flop_per_s)


class LoggedStep(NamedTuple):
    """One update from a run's log: seconds, tokens, GPUs, and hardware FLOP."""

    step_s: float
    tokens: int
    gpus: int
    hardware_flop: float

    @property
    def flop_per_s(self) -> float:
        """Hardware FLOP per second and GPU, including recomputation."""
        return achieved_flop_per_s(self.hardware_flop, self.step_s, self.gpus)


@dataclass(frozen=True)
class RunAudit:
    """The MFU of a run as a product: hfu · useful · kept."""

    run: Run
    step: LoggedStep

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilization during a step: hardware FLOP per second over the peak."""
        return self.step.flop_per_s / self.run.peak_flop_per_s

    @property
    def useful(self) -> float:
        """Fraction of the hardware FLOP that 6·N·D counts: no recomputation, no scores."""
        return six_nd(self.run.parameters, self.step.tokens) / self.step.hardware_flop

    @property
    def kept(self) -> float:
        """Fraction of the paid hours that all steps take if each is as long as the logged one."""
        steps = self.run.tokens / self.step.tokens
        return steps * self.step.step_s * self.step.gpus / (self.run.gpu_hours * HOUR_S)


# Parameters, tokens and hours: BigScience 2022, arXiv:2211.05100, table 3 and section 3.4.1.
BLOOM = Run("BLOOM 176B", 176_247_271_424, 366e9, 1_082_990, _A100.peak_flop_per_s)
# The log of 18 March 2022: 105.22 s an update of 2048 · 2048 tokens on 384 GPUs, all activations
# recomputed (github.com/bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles.md).
BLOOM_STEP = LoggedStep(
    105.22,
    2048 * 2048,
    384,
    megatron_flop(2048, 2048, layers=70, hidden=14336, vocab=250_880),
)
# GPU-hours of other runs: LLaMA, arXiv:2302.13971, table 15; github.com/meta-llama/llama,
# MODEL_CARD.md; Llama 3.1's model card, with tokens of arXiv:2407.21783, section 3.
OTHERS = (
    Run("LLaMA 65B", 65.2e9, 1.4e12, 1_022_362, _A100.peak_flop_per_s),
    Run("LLaMA-2 70B", 68.98e9, 2e12, 1_720_320, _A100.peak_flop_per_s),
    Run("Llama 3.1 405B", 405.85e9, 15.6e12, 30_840_000, _H100.peak_flop_per_s),
)


def bloom() -> Audit:
    """The audit of what BLOOM's paper and log claim about its speed."""
    audit, peak = RunAudit(BLOOM, BLOOM_STEP), BLOOM.peak_flop_per_s
    months = BLOOM.gpu_hours / BLOOM_STEP.gpus / 24 / 30.44
    claims = (
        ("149 TFLOP/s in the log", 149.02, BLOOM_STEP.flop_per_s / 1e12,
         audit.hfu * audit.useful * peak / 1e12,
         "the log counts what is computed twice; 6ND does not", "TFLOP/s"),
        ("156 TFLOP/s at best, half of the peak", 0.5, 156e12 / peak, 156e12 * audit.useful / peak,
         "half of the peak with recomputation (HFU), less without (MFU)", "of the peak"),
        ("1,082,990 GPU-hours are 3.5 months of 384 GPUs", 3.5, months, months * audit.kept,
         "the hours are 3.9 months; the steps alone would take the 3.5", "months"),
    )  # fmt: skip
    return _audit("BigScience 2022, arXiv:2211.05100, section 3.4", *claims)


# No training is faster than the best large matmul: 271.2 of an A100's 312 TFLOP/s
# (github.com/stas00/ml-engineering, compute/accelerator).
MOST = 0.87
# A convention. Published runs of dense models on thousands of GPUs lie between 0.28 and 0.57.
LEAST = 0.20


@dataclass(frozen=True)
class JudgedRun:
    """Model FLOP per second and GPU, the same over the peak, and the verdict with its source."""

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
    """Judge a run by 6·N·D / (GPU-seconds · peak): "impossible" above `most`, "poor" below `least`.

    `parameters` of a mixture of experts: those active for a token. `peak_flop_per_s`: dense.
    Attention scores, failures and restarts are not counted separately. Raises ValueError for
    quantities that are not positive, an empty source and limits that are not fractions.
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
