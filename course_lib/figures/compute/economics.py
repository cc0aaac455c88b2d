"""What a million tokens cost on each card, trained and generated."""

from collections.abc import Mapping

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_number

_LEFT, _WIDTH, _TOP, _ROW = 112.0, 250.0, 44.0, 22.0


def token_costs(costs: Mapping[str, Mapping[str, float]], title: str = "") -> Sheet:
    """{"H100": {"training": 0.6, "generating": 2.0}}, in USD for a million tokens, on one scale.

    Raises ValueError without a card, and for more than seven kinds of cost.
    """
    if not costs:
        raise ValueError('costs is empty: give for example {"H100": {"training": 0.6}}')
    kinds = list(dict.fromkeys(kind for its in costs.values() for kind in its))
    if len(kinds) > len(style.SERIES):
        raise ValueError(f"{len(kinds)} kinds of cost: name at most {len(style.SERIES)}")
    group = _ROW * len(kinds) + 12
    sheet = Sheet(_TOP + group * len(costs) + 4, _sentence(costs))
    sheet.title(title or "a million tokens")
    sheet.write(0, 29, "USD for a million tokens", colour=style.GREY)
    scale = _WIDTH / max([1e-30, *(usd for its in costs.values() for usd in its.values())])
    for place, (card, its) in enumerate(costs.items()):
        top = _TOP + place * group
        sheet.write(0, top + 15, card, bold=True)
        for kind, usd in its.items():
            row = kinds.index(kind)
            y = top + row * _ROW
            sheet.boxes([(_LEFT, y + 3, usd * scale, 15)], *style.SERIES[row])
            sheet.write(_LEFT + usd * scale + 6, y + 15, f"{_text(usd)}, {kind}")
    return sheet


def _sentence(costs: Mapping[str, Mapping[str, float]]) -> str:
    parts = (
        f"{card}: " + ", ".join(f"{kind} {_text(usd)} USD" for kind, usd in its.items())
        for card, its in costs.items()
    )
    return "A million tokens. " + "; ".join(parts) + "."


def _text(usd: float) -> str:
    return format_number(usd)
