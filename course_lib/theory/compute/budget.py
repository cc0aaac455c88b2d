"""From FLOPs to practical quantities: utilisation, training days, GPU-hours and money."""

from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Annotated

from course_lib.checked import Count, NotNegative, Positive, check_public
from course_lib.validation import number

HOUR_S = 3600
DAY_S = 24 * HOUR_S

# More than any computation ever made, and far below the largest float: a larger value is a typo.
ABSURD_FLOP = 1e40
_Flop = Annotated[float, partial(number, least=0, most=ABSURD_FLOP)]

# Training tokens per parameter that minimise the loss at a fixed FLOP budget: Hoffmann et al. 2022,
# arXiv:2203.15556, table 3.
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class TrainingRun:
    """A run of `time_s` seconds on `gpus` accelerators at `gpu_hour_usd` per GPU-hour.

    The default price, 2 USD, is what DeepSeek-V3 (arXiv:2412.19437, table 1) assumes.
    """

    time_s: _Flop
    gpus: Count
    gpu_hour_usd: NotNegative = 2.0

    @property
    def days(self) -> float:
        """Wall-clock days: time_s / 86,400."""
        return self.time_s / DAY_S

    @property
    def gpu_hours(self) -> float:
        """gpus × hours."""
        return self.gpus * self.time_s / HOUR_S

    @property
    def cost_usd(self) -> float:
        """gpu_hours × gpu_hour_usd."""
        return cost(self.gpu_hours, self.gpu_hour_usd)

    def explain(self) -> str:
        """Time, GPU-hours and cost, one line each."""
        return "\n".join(
            [
                f"time = {self.time_s:,.0f} s = {self.days:,.2f} days",
                f"GPU-hours = {self.gpus:,} GPUs × {self.time_s / HOUR_S:,.1f} h = "
                f"{self.gpu_hours:,.0f}",
                f"cost = GPU-hours × {self.gpu_hour_usd:g} USD = {self.cost_usd:,.0f} USD",
            ]
        )


def training_run(
    flop: _Flop, gpus: Count, flop_per_s_per_gpu: Positive, gpu_hour_usd: float = 2.0
) -> TrainingRun:
    """A run of `flop` in total: time = flop / (gpus × achieved FLOP/s of one GPU).

    Pair hardware FLOPs with the hardware's rate, or model FLOPs with peak × MFU; do not mix them.
    """
    return TrainingRun(flop / (gpus * flop_per_s_per_gpu), gpus, gpu_hour_usd)


def training_run_at(
    tokens: NotNegative, gpus: Count, tokens_per_s_per_gpu: Positive, gpu_hour_usd: float = 2.0
) -> TrainingRun:
    """A run at a measured throughput: time = tokens / (gpus × tokens per second of one GPU)."""
    return TrainingRun(tokens / (gpus * tokens_per_s_per_gpu), gpus, gpu_hour_usd)


def compute_optimal_parameters(flop: _Flop) -> float:
    """Parameters of the compute-optimal model for a FLOP budget: N = sqrt(flop / 120).

    It follows from flop = 6·N·D with D = 20·N tokens. Source: Hoffmann et al. 2022 ("Chinchilla"),
    arXiv:2203.15556, table 3.
    """
    return sqrt(flop / (6 * TOKENS_PER_PARAMETER))


def cost(gpu_hours: _Flop, gpu_hour_usd: NotNegative) -> float:
    """Cost in USD: GPU-hours × price per GPU-hour."""
    return gpu_hours * gpu_hour_usd


def usd_per_million_tokens(tokens_per_s: Positive, gpus: Count, gpu_hour_usd: NotNegative) -> float:
    """Cost in USD of 10^6 tokens: GPUs × price per GPU-hour / tokens per hour × 10^6.

    `tokens_per_s`: throughput of all GPUs together, in training or in generation.
    """
    return gpus * gpu_hour_usd / (tokens_per_s * HOUR_S) * 1e6


def even_price(
    price_usd: NotNegative, tokens_per_s: Positive, other_tokens_per_s: NotNegative
) -> float:
    """Price at which another GPU's tokens cost the same: price × other tokens/s / our tokens/s.

    Both throughputs are those of a single GPU.
    """
    return price_usd * other_tokens_per_s / tokens_per_s


def achieved_flop_per_s(flop: _Flop, time_s: Positive, gpus: Count = 1) -> float:
    """FLOP/s of one GPU: flop / (time × gpus)."""
    return flop / (time_s * gpus)


def utilisation(flop: float, time_s: float, gpus: int, peak_flop_per_s: Positive) -> float:
    """Fraction of the dense peak that was used: flop / (time × gpus × peak).

    MFU if `flop` are model FLOPs, HFU if they are hardware FLOPs. Source: PaLM, arXiv:2204.02311,
    appendix B.
    """
    return achieved_flop_per_s(flop, time_s, gpus) / peak_flop_per_s


def saved_fraction(before_s: Positive, after_s: Positive) -> float:
    """Fraction of the time that was saved: (before - after) / before; 0.265 is 26.5 % less time.

    YaFSDP's benchmarks call this speedup (github.com/yandex/YaFSDP, README).
    """
    return (before_s - after_s) / before_s


def throughput_gain(before_s: Positive, after_s: Positive) -> float:
    """Relative gain in throughput: before / after - 1; 26.5 % less time is 36 % more throughput."""
    return before_s / after_s - 1


check_public(globals())
