"""What a million tokens cost on each card, trained and generated."""

from collections.abc import Mapping

from course_lib.figures.engines.bars import grouped_bars
from course_lib.figures.paper import style
from course_lib.figures.paper.drawing import Drawing
from course_lib.theory.inputs.units import format_number


def token_costs(
    costs: Mapping[str, Mapping[str, float]], title: str = "a million tokens"
) -> Drawing:
    """{"H100": {"training": 0.6, "generating": 2.0}}, in USD for a million tokens, on one scale.

    Raises ValueError without a card, and for more than seven kinds of cost.
    """
    if not costs:
        raise ValueError('costs is empty: give for example {"H100": {"training": 0.6}}')
    kinds = list(dict.fromkeys(kind for its in costs.values() for kind in its))
    if len(kinds) > len(style.SERIES):
        raise ValueError(f"{len(kinds)} kinds of cost: name at most {len(style.SERIES)}")
    looks = dict(zip(kinds, style.SERIES, strict=False))
    return grouped_bars(costs, title, lambda usd: f"{format_number(usd)} USD a million", looks)
