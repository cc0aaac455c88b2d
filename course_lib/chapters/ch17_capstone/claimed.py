"""Audits A, C and D: a plan for 2048 cards, the speed of FSDP, runs judged by their GPU-hours."""

from dataclasses import dataclass
from math import ceil

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
    ACCELERATORS,
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

PLAN_SOURCE = "GPU算力评估, study notes on training and inference (cited as 004)"
_LLAMA = MODELS["llama2-70b"]
# "4M tokens" (github.com/meta-llama/llama, MODEL_CARD.md), read as 1024 of its sequences.
_LLAMA_BATCH_TOKENS = 1024 * 4096
_NOTES_FLOP_PER_S = 330e12
# Of a layer, for each token and number of h: all, 10 + 24, as the notes count; its input in bf16.
_KEPT_BYTES, _INPUT_BYTES = 34, 2


@checked
@dataclass(frozen=True)
class NotesPlan:
    """What the notes choose: cards, stages of one layer, and micro-batches of so many sequences."""

    chip: Accelerator = ACCELERATORS["RTX4090"]
    cards: int = 2048
    stages: int = 80
    micro_batch: int = 8
    sequence: int = 4096

    def __post_init__(self) -> None:
        whole("cards", self.cards, most=10**7)
        whole("stages", self.stages, most=1024)
        whole("micro_batch", self.micro_batch, most=10**6)
        whole("sequence", self.sequence, most=10**7)

    @property
    def replicas(self) -> float:
        """Copies of the model, and partners of a gradient: cards / stages, whole or not."""
        return self.cards / self.stages

    @property
    def layer_s(self) -> float:
        """Seconds of a micro-batch in a layer of exactly its size, at the chip's own peak."""
        return six_nd(_LLAMA.layer_parameters(1).total, self._tokens) / self.chip.peak_flop_per_s

    @property
    def update_s(self) -> float:
        """Seconds of an update with as many micro-batches as stages, bubble and all."""
        ideal = self.stages * self.layer_s
        return ideal * (1 + bubble_over_ideal(self.stages, self.stages))

    @property
    def held(self) -> float:
        """Activations on the first stage under 1F1B over those of the model, one micro-batch."""
        layout = Layout(pp=self.stages, accumulation=2 * self.stages)
        return layout.in_flight(0)[0] / self.stages

    @property
    def batch_tokens(self) -> float:
        """Tokens of an update with as many micro-batches as stages: cards · micro-batch · s."""
        return self.cards * self._tokens

    @property
    def _tokens(self) -> int:
        return self.micro_batch * self.sequence


@checked
def plan_2048(plan: NotesPlan | None = None) -> Audit:
    """The claims of the notes, in their order; `plan` None: the notes' own choices and card."""
    plan = plan or NotesPlan()
    return Audit(PLAN_SOURCE, (*_memory(plan), *_time(plan), *_batch(plan)))


def _memory(plan: NotesPlan) -> tuple[Claim, ...]:
    stages, layers = plan.stages, _LLAMA.layers
    return (
        Claim(
            "80 stages keep 160 times the activations",
            160,
            2 * stages,
            plan.held,
            "1F1B keeps p micro-batches of L/p layers, whatever p is",
            "times",
        ),
        Claim(
            "with 8 groups of 10 layers still 16 times",
            16,
            2 * stages / 10,
            plan.held * _INPUT_BYTES / _KEPT_BYTES + 1 / stages,
            "a stage keeps its layer's input for p micro-batches, and one layer is whole at a time",
            "times",
        ),
        Claim(
            "full recomputation: 3240 layers instead of 80, 40 times the work",
            40,
            layers * (layers + 1) / 2 / layers,
            six_nd(1, 1, "full") / six_nd(1, 1),
            "each layer keeps its own input, and is computed once more",
            "times",
        ),
        Claim(
            "1850 GB need 78 cards of 24 GB",
            78,
            ceil(1850 / 24),
            8 * ceil(1850e9 / plan.chip.memory_bytes / 8),
            "a lower bound, here in whole nodes of 8; a plan names its degrees",
            "cards",
        ),
    )


def _time(plan: NotesPlan) -> tuple[Claim, ...]:
    chip = plan.chip
    notes_layer_s = six_nd(1e9, 8 * 4096) / _NOTES_FLOP_PER_S
    exchange = collectives.sent_bytes("all-reduce", 4 * _LLAMA.layer_parameters(1).total, 2)
    return (
        Claim(
            "a micro-batch takes 0.6 s in a layer",
            0.6,
            notes_layer_s,
            plan.layer_s,
            f"0.856 billion parameters at {chip.peak_flop_per_s / 1e12:g} TFLOP/s",
            "s",
        ),
        Claim(
            "a training step takes 48 s",
            48,
            80 * notes_layer_s,
            plan.update_s,
            "the peak, the layer's size, and a bubble as long as the work",
            "s",
        ),
        Claim(
            "4 GB of gradients travel in 0.12 s",
            0.12,
            4e9 / 32e9,
            exchange / chip.inside.bytes_per_s,
            f"3.42 GB over {chip.inside.name}, one way",
            "s",
            within=0.1,
        ),
        Claim(
            "with 80 micro-batches 80 stages are full",
            1.0,
            None,
            1 / (1 + bubble_over_ideal(plan.stages, plan.stages)),
            "80 micro-batches in 80 stages: 79 of 159 slots are bubble",
            "of the time",
        ),
    )


def _batch(plan: NotesPlan) -> tuple[Claim, ...]:
    return (
        Claim(
            "2048 cards exchange gradients with each other",
            2048,
            plan.cards,
            plan.replicas,
            "only copies of the same layer do, and 0.6 of a copy is none",
            "cards",
        ),
        Claim(
            "the batch is 16384 sequences",
            16384,
            plan.cards * plan.micro_batch,
            plan.replicas * plan.stages * plan.micro_batch,
            "copies · micro-batches · their size, with as many micro-batches as stages",
            "sequences",
        ),
        Claim(
            "such a batch is fairly large",
            1.0,
            None,
            plan.batch_tokens / _LLAMA_BATCH_TOKENS,
            "in tokens, over the 4 million of LLaMA-2's own updates",
            "times",
        ),
    )


@checked
def compared(first: Accelerator, second: Accelerator) -> Claim:
    """The claim that faster memory raises computing over communication, H100 against H200.

    `said` and `own_terms`: the gain of the memory's bandwidth; `found`: the gain of FLOP for each
    byte of the link, which is what the notes' ratio is about.
    """
    memory = second.memory_bytes_per_s / first.memory_bytes_per_s
    per_byte = [it.peak_flop_per_s / it.inside.bytes_per_s for it in (first, second)]
    number("gain", memory, above=0)
    return Claim(
        "faster memory raises the ratio of computing to communication",
        memory,
        memory,
        per_byte[1] / per_byte[0],
        f"peak over link; the memory's ridge goes from {first.ridge_flop_per_byte:.0f} to "
        f"{second.ridge_flop_per_byte:.0f} FLOP per byte",
        "times",
    )


FSDP_SOURCE = "Zhao et al. 2023, arXiv:2304.11277, abstract and section 5; YaFSDP's README, 2024"
# The paper's cluster: 8 A100 in a node and 2 Tb/s of RoCE (section 5.1), so 250 Gb/s for each GPU.
ROCE = Link("RoCE, 2 Tb/s a node", 2e12 / 8 / 8, NETWORK_LATENCY_S)
MONTH_H = 730


@checked
@dataclass(frozen=True)
class Weak:
    """Data parallelism alone: each of `gpus` A100 gets `tokens` in sequences of `sequence`.

    All activations are recomputed, as in the paper's larger models. Raises ValueError unless gpus
    is a multiple of 8 and tokens one of sequence.
    """

    shape: TransformerShape
    gpus: int = 8
    tokens: int = 4096
    sequence: int = 512
    link: Link = ROCE

    def __post_init__(self) -> None:
        for name in ("gpus", "tokens", "sequence"):
            whole(name, getattr(self, name), most=10**7)
        if self.gpus % 8 or self.tokens % self.sequence:
            raise ValueError(
                f"gpus {self.gpus} and tokens {self.tokens} must be whole nodes of 8 and whole "
                f"sequences of {self.sequence}: take multiples"
            )

    def step(self, zero_stage: int, assumptions: Assumptions | None = None) -> StepTime:
        """A step: `zero_stage` 0 is DDP, 3 FSDP."""
        batch = self.tokens // self.sequence
        layout = Layout(dp=self.gpus, zero_stage=zero_stage, micro_batch=batch)
        chip = accelerator("A100-SXM-80GB")
        cluster = Cluster(chip, self.gpus // 8, between=self.link)
        job = Job(self.shape, Recipe(recompute="full"), layout, cluster, self.sequence)
        return step_time(job, assumptions)

    @property
    def flop_per_s(self) -> float:
        """Hardware FLOP in a second on one GPU under FSDP, as the paper counts them."""
        step = self.step(3)
        return step.hardware_flop / step.total_s / step.gpus

    @property
    def over_ddp(self) -> float:
        """Time of a step under FSDP over that under DDP; memory isn't asked."""
        return self.step(3).total_s / self.step(0).total_s


@checked
def fsdp_scaling(large: Weak, small: Weak, gpu_hour_usd: float = 2.0) -> Audit:
    """The claims. `large`: what each GPU has in the paper's runs; `small`: where little is left.

    `gpu_hour_usd` 2: the price that DeepSeek-V3 (arXiv:2412.19437, table 1) assumes.
    """
    number("gpu_hour_usd", gpu_hour_usd, least=0)
    hours = 150 * MONTH_H
    wide, narrow = (Weak(MODELS["gpt3-175b"], gpus, 2048, 2048, large.link) for gpus in (512, 128))
    return Audit(
        FSDP_SOURCE,
        (
            Claim(
                "FSDP is comparable to DDP",
                1.0,
                large.over_ddp,
                small.over_ddp,
                f"{small.tokens:,} tokens on each of {small.gpus:,} GPUs do not hide its messages",
                "times DDP's step",
                within=0.1,
            ),
            Claim(
                "near-linear: 175B on 512 GPUs as fast per GPU as on 128",
                1.0,
                wide.flop_per_s / narrow.flop_per_s,
                0.93,
                "T5-11B from 8 to 512 GPUs lost 7 % (the paper's own section 5.4)",
                "times",
            ),
            Claim(
                "YaFSDP trains 26 % faster",
                0.26,
                saved_fraction(9.76, 7.17),
                throughput_gain(9.76, 7.17),
                "26 % less time, in the best of 16 rows, is 36 % more throughput",
            ),
            Claim(
                "150 GPUs saved are 0.5 million dollars a month",
                0.5e6,
                None,
                cost(hours, gpu_hour_usd),
                f"at {gpu_hour_usd:g} USD an hour; the claim takes {0.5e6 / hours:.2f} or more",
                "USD",
            ),
        ),
    )


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
