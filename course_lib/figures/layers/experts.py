"""How many choices fall on each expert, and which of them are dropped."""

from course_lib.figures.paper import style
from course_lib.figures.paper.picture import WIDTH_PT
from course_lib.figures.paper.sheet import Sheet
from course_lib.figures.paper.text import counted
from course_lib.theory.inputs.units import format_bytes
from course_lib.theory.network.experts import ExpertLoad

_LEFT, _TOP, _HEIGHT = 62.0, 66.0, 150.0
_WIDTH = WIDTH_PT - _LEFT - 62  # the lines' names stand to the right


def expert_bars(load: ExpertLoad, title: str = "") -> Sheet:
    """One bar for each expert, in order of its number; ranks are bracketed below.

    What is above the capacity is dropped.
    """
    sheet = Sheet(_TOP + _HEIGHT + 52, sentence(load))
    sheet.title(title)
    sheet.write(0, 30, "choices that fall on each expert", colour=style.GREY)
    _legend(sheet, load)
    shown_limit = load.capacity if load.capacity < load.choices else 0
    top = max(*load.load, 1.15 * shown_limit, 1.15 * load.mean)
    scale = _HEIGHT / top
    bottom = _TOP + _HEIGHT
    slot = _WIDTH / len(load.load)
    bar = max(0.8 * slot, slot - 6)

    def boxes(values: list[tuple[int, int]]) -> list[tuple[float, float, float, float]]:
        """Boxes of (from, to), one for each expert, without those of no height."""
        return [
            (_LEFT + place * slot + (slot - bar) / 2, bottom - to * scale, bar, (to - low) * scale)
            for place, (low, to) in enumerate(values)
            if to > low
        ]

    sheet.boxes(boxes([(0, taken) for taken in load.accepted]), style.COMPUTING)
    dropped = boxes(list(zip(load.accepted, load.load, strict=True)))
    sheet.boxes(dropped, style.WARNING)
    _levels(sheet, load, shown_limit, scale)
    _ranks(sheet, load, slot)
    return sheet


def sentence(load: ExpertLoad) -> str:
    """Imbalance, dropped choices and bytes in words."""
    experts = counted(len(load.load), "expert")
    lost = (
        f"{load.dropped:,} of them ({load.dropped_fraction:.1%}) are dropped"
        if load.dropped
        else "none is dropped"
    )
    return (
        f"{counted(load.choices, 'choice')} on {experts}: the busiest gets {max(load.load):,}, "
        f"{load.imbalance:.2f} times the mean; {lost}; in one all-to-all each of "
        f"{counted(load.ranks, 'rank')} hands over {format_bytes(load.dispatch_bytes)}."
    )


def _legend(sheet: Sheet, load: ExpertLoad) -> None:
    for place, (name, fill) in enumerate(
        (("accepted", style.COMPUTING), ("dropped", style.WARNING))
    ):
        if name == "accepted" or load.dropped:
            x = _LEFT + 90 * place
            sheet.boxes([(x, 41, 14, 10)], fill)
            sheet.write(x + 20, 50, name)


def _levels(sheet: Sheet, load: ExpertLoad, limit: int, scale: float) -> None:
    """The axis, and the lines of capacity and mean; names that would overlap are left out."""
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (right, bottom)])
    levels = [("mean", load.mean, style.GREY), ("busiest", max(load.load), style.GREY)]
    if limit:
        levels.insert(0, ("capacity", limit, style.INK))
    taken: list[float] = []
    for name, value, colour in [*levels, ("", 0, style.GREY)]:
        y = bottom - value * scale
        if name in ("capacity", "mean"):
            sheet.line([(_LEFT, y), (right, y)], colour, width=1.4, dashed=True)
        if all(abs(y - other) >= 12 for other in taken):
            taken.append(y)
            sheet.write(_LEFT - 6, y + 4, _short(value), align="right", colour=colour)
            if name in ("capacity", "mean"):
                sheet.write(right + 5, y + 4, name, colour=colour)


def _ranks(sheet: Sheet, load: ExpertLoad, slot: float) -> None:
    """A bracket under the experts of each rank, and their numbers where there is room."""
    own, y = len(load.load) // load.ranks, _TOP + _HEIGHT + 22
    if slot >= 16:
        for place in range(len(load.load)):
            x = _LEFT + (place + 0.5) * slot
            text = str(place)
            sheet.write(x, y - 9, text, align="center", colour=style.GREY, size=8)
    for rank in range(load.ranks):
        left, right = _LEFT + rank * own * slot + 1, _LEFT + (rank + 1) * own * slot - 1
        sheet.line([(left, y - 4), (left, y), (right, y), (right, y - 4)])
        if own * slot >= 40:
            sheet.write((left + right) / 2, y + 12, f"rank {rank}", align="center", size=9)
    middle, text = _LEFT + _WIDTH / 2, f"{counted(len(load.load), 'expert')}, "
    text += f"{counted(own, 'expert')} on each of {counted(load.ranks, 'rank')}"
    sheet.write(middle, y + 26, text, align="center", colour=style.GREY)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
