"""What a million tokens cost on each card, trained and generated."""

from collections.abc import Mapping

from course_lib.figures.engines.bars import grouped_bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_number


def token_costs(
    costs: Mapping[str, Mapping[str, float]], title: str = "a million tokens"
) -> Drawing:
    """{"H100": {"training": 0.6, "generating": 2.0}}, in USD for a million tokens, on one scale."""
    kinds = list(dict.fromkeys(kind for its in costs.values() for kind in its))
    looks = dict(zip(kinds, style.SERIES, strict=False))
    return grouped_bars(costs, title, lambda usd: f"{format_number(usd)} USD a million", looks)
