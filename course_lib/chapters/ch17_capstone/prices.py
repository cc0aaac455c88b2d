"""Prices of a GPU-hour, each with its date and its source: they change, so put in your own."""

from dataclasses import dataclass

from course_lib.validation import number, text


@dataclass(frozen=True)
class HourPrice:
    """USD for one GPU for an hour, as `source` gave it on `date`."""

    usd: float
    date: str
    source: str

    def __post_init__(self) -> None:
        number("usd", self.usd, least=0)
        text("date", self.date)
        text("source", self.source)

    def explain(self) -> str:
        """One line."""
        return f"{self.usd:.2f} USD an hour ({self.date}, {self.source})"


_SURVEY = "mercatus-ai.com/blog/cloud-gpu-pricing, the lowest it found on demand"
# Examples to compute with, not offers: in that survey the same H100 costs 1.99 to 5.00 USD.
PRICES = {
    "H800-SXM": HourPrice(
        2.00, "December 2024", "assumed by DeepSeek-V3, arXiv:2412.19437, table 1"
    ),
    "H100-SXM": HourPrice(1.99, "May 2026", _SURVEY),
    "H200-SXM": HourPrice(2.50, "May 2026", _SURVEY),
    "RTX4090": HourPrice(0.34, "July 2025", "deploybase.ai/articles/rtx-4090-vs-h100"),
}
