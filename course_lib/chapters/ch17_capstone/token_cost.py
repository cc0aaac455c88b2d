"""What a million tokens cost on a group of cards, trained and generated."""

from dataclasses import dataclass

from course_lib.chapters.ch17_capstone.decoding import Decoding
from course_lib.checked import checked
from course_lib.theory.compute.budget import usd_per_million_tokens
from course_lib.theory.compute.flops import six_nd
from course_lib.theory.inputs.units import format_number
from course_lib.validation import fraction, number


@checked
@dataclass(frozen=True)
class TokenCost:
    """A group of `decoding.tp` cards that generates as `decoding` says, or trains at `mfu`.

    `mfu`: what training reaches of the dense peak, by a run of yours or by `step_time`; 0.4 is what
    Llama 3 405B reached (arXiv:2407.21783, table 4: 38 to 43 %). Whether training fits into the
    memory of the group isn't asked. Raises ValueError for a price below 0.
    """

    decoding: Decoding
    gpu_hour_usd: float
    mfu: float = 0.4

    def __post_init__(self) -> None:
        number("gpu_hour_usd", self.gpu_hour_usd, least=0)
        fraction("mfu", self.mfu)

    @property
    def trained_per_s(self) -> float:
        """Tokens in a second of training, all cards: cards · peak · MFU / 6N."""
        peak = self.decoding.tp * self.decoding.accelerator.peak_flop_per_s
        return peak * self.mfu / six_nd(self.decoding.shape.parameters().total, 1)

    @property
    def training_usd(self) -> float:
        """Money for 10^6 tokens of training."""
        return usd_per_million_tokens(self.trained_per_s, self.decoding.tp, self.gpu_hour_usd)

    @property
    def generating_usd(self) -> float:
        """Money for 10^6 generated tokens, reading the prompt not counted."""
        rate = self.decoding.tokens_per_s
        return usd_per_million_tokens(rate, self.decoding.tp, self.gpu_hour_usd)

    def explain(self) -> str:
        """Both rates with their prices."""
        return "\n".join(
            [
                f"training   {self.trained_per_s:>9,.0f} tokens/s at an MFU of {self.mfu:.0%}: "
                f"{format_number(self.training_usd)} USD a million",
                f"generating {self.decoding.tokens_per_s:>9,.0f} tokens/s: "
                f"{format_number(self.generating_usd)} USD a million",
            ]
        )
