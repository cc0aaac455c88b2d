"""Audit C: what is said of FSDP's speed beside DDP, of its scaling, and of YaFSDP's gain."""

from dataclasses import dataclass

from course_lib.checked import checked
from course_lib.theory.audits.claim import Audit, Claim
from course_lib.theory.compute.budget import cost, saved_fraction, throughput_gain
from course_lib.theory.inputs.hardware import NETWORK_LATENCY_S, Cluster, Link, accelerator
from course_lib.theory.inputs.job import Job
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.models import MODELS
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.inputs.shape import TransformerShape
from course_lib.theory.step.assumptions import Assumptions
from course_lib.theory.step.step_time import StepTime, step_time
from course_lib.validation import number, whole

SOURCE = "Zhao et al. 2023, arXiv:2304.11277, abstract and section 5; YaFSDP's README, 2024"
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
        SOURCE,
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
