"""From FLOPs to what people ask for: utilisation, training days, GPU-hours and money."""

from dataclasses import dataclass
from math import sqrt

from course_lib.checked import checked
from course_lib.theory.compute.flops import FlopBreakdown
from course_lib.validation import number, whole

HOUR_S = 3600
DAY_S = 24 * HOUR_S

# More than any computation ever made, and far below the largest float: a larger value is a typo.
ABSURD_FLOP = 1e40

# With so many tokens a fixed budget of FLOP reaches the least loss: Hoffmann et al. 2022,
# arXiv:2203.15556, table 3.
TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class TrainingRun:
    """`time_s` seconds on `gpus` accelerators at `gpu_hour_usd` each hour.

    The default price, 2 USD, is what DeepSeek-V3 (arXiv:2412.19437, table 1) assumes.
    """

    time_s: float
    gpus: int
    gpu_hour_usd: float = 2.0

    def __post_init__(self) -> None:
        number("time_s", self.time_s, least=0, most=ABSURD_FLOP)
        whole("gpus", self.gpus)
        number("gpu_hour_usd", self.gpu_hour_usd, least=0)

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
        """One line per quantity."""
        return "\n".join(
            [
                f"time = {self.time_s:,.0f} s = {self.days:,.2f} days",
                f"GPU-hours = {self.gpus:,} GPUs × {self.time_s / HOUR_S:,.1f} h = "
                f"{self.gpu_hours:,.0f}",
                f"cost = GPU-hours × {self.gpu_hour_usd:g} USD = {self.cost_usd:,.0f} USD",
            ]
        )


def training_run(
    flop: float, gpus: int, flop_per_s_per_gpu: float, gpu_hour_usd: float = 2.0
) -> TrainingRun:
    """A run of `flop` in total: time = flop / (gpus × achieved FLOP/s of one GPU).

    Hardware FLOPs with the hardware's rate or model FLOPs with peak × MFU: never one of each.
    Raises ValueError for a rate that is not positive.
    """
    number("flop", flop, least=0, most=ABSURD_FLOP)
    whole("gpus", gpus)
    number("flop_per_s_per_gpu", flop_per_s_per_gpu, above=0)
    return TrainingRun(flop / (gpus * flop_per_s_per_gpu), gpus, gpu_hour_usd)


def training_run_at(
    tokens: float, gpus: int, tokens_per_s_per_gpu: float, gpu_hour_usd: float = 2.0
) -> TrainingRun:
    """A run whose speed was measured: time = tokens / (gpus × tokens per second of one GPU)."""
    number("tokens", tokens, least=0)
    whole("gpus", gpus)
    number("tokens_per_s_per_gpu", tokens_per_s_per_gpu, above=0)
    return TrainingRun(tokens / (gpus * tokens_per_s_per_gpu), gpus, gpu_hour_usd)


def compute_optimal_parameters(flop: float) -> float:
    """The model that makes the most of a budget: N = sqrt(flop / 120).

    It follows from flop = 6·N·D with D = 20·N tokens. Source: Hoffmann et al. 2022 ("Chinchilla"),
    arXiv:2203.15556, table 3. Raises ValueError for a budget below 0.
    """
    number("flop", flop, least=0, most=ABSURD_FLOP)
    return sqrt(flop / (6 * TOKENS_PER_PARAMETER))


def cost(gpu_hours: float, gpu_hour_usd: float) -> float:
    """Money in USD: GPU-hours × price of one."""
    number("gpu_hours", gpu_hours, least=0, most=ABSURD_FLOP)
    number("gpu_hour_usd", gpu_hour_usd, least=0)
    return gpu_hours * gpu_hour_usd


def usd_per_million_tokens(tokens_per_s: float, gpus: int, gpu_hour_usd: float) -> float:
    """Money for 10^6 tokens: GPUs × price of an hour / tokens in an hour × 10^6.

    `tokens_per_s`: of all GPUs together, whether they train or generate. Raises ValueError for a
    rate that is not positive.
    """
    number("tokens_per_s", tokens_per_s, above=0)
    whole("gpus", gpus)
    number("gpu_hour_usd", gpu_hour_usd, least=0)
    return gpus * gpu_hour_usd / (tokens_per_s * HOUR_S) * 1e6


def even_price(price_usd: float, tokens_per_s: float, other_tokens_per_s: float) -> float:
    """The price at which another GPU's tokens cost as much: price × its tokens per second / ours.

    Rates of one GPU each. Raises ValueError for a rate that is not positive.
    """
    number("price_usd", price_usd, least=0)
    number("tokens_per_s", tokens_per_s, above=0)
    number("other_tokens_per_s", other_tokens_per_s, least=0)
    return price_usd * other_tokens_per_s / tokens_per_s


def achieved_flop_per_s(flop: float, time_s: float, gpus: int = 1) -> float:
    """FLOP/s of one GPU: flop / (time × gpus). Raises ValueError for no time."""
    number("flop", flop, least=0, most=ABSURD_FLOP)
    number("time_s", time_s, above=0)
    whole("gpus", gpus)
    return flop / (time_s * gpus)


def utilisation(flop: float, time_s: float, gpus: int, peak_flop_per_s: float) -> float:
    """Part of the dense peak that was used: flop / (time × gpus × peak).

    MFU if `flop` are model FLOPs, HFU if they are hardware FLOPs. Source: PaLM, arXiv:2204.02311,
    appendix B. Raises ValueError for a time or a peak that is not positive.
    """
    number("peak_flop_per_s", peak_flop_per_s, above=0)
    return achieved_flop_per_s(flop, time_s, gpus) / peak_flop_per_s


@checked
def mfu(flops: FlopBreakdown, time_s: float, gpus: int, peak_flop_per_s: float) -> float:
    """Model FLOPs utilisation: without what was recomputed."""
    return utilisation(flops.model_flop, time_s, gpus, peak_flop_per_s)


@checked
def hfu(flops: FlopBreakdown, time_s: float, gpus: int, peak_flop_per_s: float) -> float:
    """Hardware FLOPs utilisation: with what was recomputed, so never below MFU."""
    return utilisation(flops.hardware_flop, time_s, gpus, peak_flop_per_s)


def saved_fraction(before_s: float, after_s: float) -> float:
    """Part of the time that is gone: (before - after) / before; 0.265 is 26.5 % less time.

    What YaFSDP's benchmarks call speedup (github.com/yandex/YaFSDP, README).
    """
    number("before_s", before_s, above=0)
    number("after_s", after_s, above=0)
    return (before_s - after_s) / before_s


def throughput_gain(before_s: float, after_s: float) -> float:
    """More work in the same time: before / after - 1; 26.5 % less time is 36 % more throughput."""
    number("before_s", before_s, above=0)
    number("after_s", after_s, above=0)
    return before_s / after_s - 1
