"""What failures and saves cost, against the interval between two saves."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log10

from course_lib.figures.paper import style
from course_lib.figures.paper.sheet import Sheet
from course_lib.theory.inputs.units import format_duration, format_number
from course_lib.theory.step.recovery import Saving

_LEFT, _TOP, _WIDTH, _HEIGHT = 46.0, 80.0, 460.0, 190.0
_SHORTEST, _LONGEST = 1.0, 86_400.0  # seconds between two saves
_TICKS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 14400: "4 h", 86400: "1 d"}
_SAMPLES = 90
_LOOKS = {
    "saving": style.BLUE,
    "work done again": style.GREEN,
    "restarting": style.PINK,
}
Point = tuple[float, float]  # seconds between saves, waste


def wasted_time(
    plan: Saving, title: str = "", measured: Mapping[str, Sequence[Point]] | None = None
) -> Sheet:
    """Waste over the interval, its three parts, the best interval, and the plan's own.

    `measured`: {"simulated": [(seconds between saves, waste), …]}, drawn as dots.
    """
    sheet = Sheet(_TOP + _HEIGHT + 98, sentence(plan))
    sheet.title(title or "What failures cost")
    words = "time lost, in % of the time spent on new work"
    sheet.write(0, 30, words, colour=style.GREY)
    top = _ceiling(_best(plan).waste)
    _axes(sheet, top)
    along = _along(plan)
    parts = [at.parts for at in along]
    for name, colour in _LOOKS.items():
        its = [(at.interval_s, part[name]) for at, part in zip(along, parts, strict=True)]
        _curve(sheet, its, top, colour, dashed=True)
    _curve(sheet, [(at.interval_s, at.waste) for at in along], top, style.INK)
    _marks(sheet, plan, top)
    for points in (measured or {}).values():
        for interval_s, waste in points:
            sheet.dot(_across(interval_s), _down(waste, top), style.WHITE, radius=4)
    _legend(sheet, plan, tuple(measured or ()))
    return sheet


def sentence(plan: Saving) -> str:
    """Both intervals and what they waste, in words."""
    best = _best(plan)
    return (
        f"A failure every {format_duration(plan.mtbf_s)}, {format_duration(plan.save_s)} for a "
        f"save, {format_duration(plan.restart_s)} for a restart: saving every "
        f"{format_duration(plan.interval_s)} wastes {_percent(plan.waste)}, the best interval of "
        f"{format_duration(best.interval_s)} wastes {_percent(best.waste)}."
    )


def _best(plan: Saving) -> Saving:
    return replace(plan, interval_s=plan.best_interval_s)


def _percent(part: float) -> str:
    return f"{part:.1%}" if part < 10 else f"{part:,.0%}"


def _along(plan: Saving) -> list[Saving]:
    """The plan with other intervals, as long as it gets anywhere."""
    found = []
    for step in range(_SAMPLES + 1):
        interval_s = _SHORTEST * (_LONGEST / _SHORTEST) ** (step / _SAMPLES)
        try:
            found.append(replace(plan, interval_s=interval_s))
        except ValueError:  # nothing is ever finished
            break
    return found


def _ceiling(waste: float) -> float:
    """A round number above twice the least waste."""
    decade = 10.0 ** int(log10(max(waste, 1e-6)) - 1)
    return next(decade * k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500) if decade * k >= 2 * waste)


def _across(interval_s: float) -> float:
    part = log10(interval_s / _SHORTEST) / log10(_LONGEST / _SHORTEST)
    return _LEFT + min(max(part, 0), 1) * _WIDTH


def _down(waste: float, top: float) -> float:
    return _TOP + (1 - min(max(waste / top, 0), 1)) * _HEIGHT


def _axes(sheet: Sheet, top: float) -> None:
    bottom = _TOP + _HEIGHT
    for quarter in range(5):
        y = _down(top * quarter / 4, top)
        sheet.line([(_LEFT, y), (_LEFT + _WIDTH, y)], style.PALE)
        percent = 100 * top * quarter / 4
        text = f"{format_number(percent, 3 if percent >= 1 else 2)} %"
        sheet.write(_LEFT - 5, y + 4, text, align="right", colour=style.GREY, size=9)
    for seconds, text in _TICKS.items():
        x = _across(seconds)
        sheet.line([(x, _TOP), (x, bottom)], style.PALE)
        sheet.write(x, bottom + 14, text, align="center", colour=style.GREY, size=9)
    sheet.line([(_LEFT, _TOP), (_LEFT, bottom), (_LEFT + _WIDTH, bottom)])
    sheet.write(_LEFT + _WIDTH / 2, bottom + 30, "work between two saves", align="center")


def _curve(
    sheet: Sheet, points: list[Point], top: float, colour: str, dashed: bool = False
) -> None:
    inside = [point for point in points if point[1] <= top]
    if len(inside) > 1:
        places = [(_across(x), _down(y, top)) for x, y in inside]
        sheet.line(places, colour, 1.5 if dashed else 2.5, dashed)


def _marks(sheet: Sheet, plan: Saving, top: float) -> None:
    """Upright lines at the best interval, with its words above, and at the plan's own."""
    best, ours = _across(plan.best_interval_s), _across(plan.interval_s)
    middle = min(max(best, _LEFT + 70), _LEFT + _WIDTH - 70)
    sheet.write(middle, _TOP - 26, _words("best", _best(plan)), align="center", colour=style.GREY)
    side, shift = ("left", 6) if ours < _LEFT + _WIDTH / 2 else ("right", -6)
    words = _words("yours", plan)
    sheet.write(ours + shift, _TOP - 8, words, align=side)
    for at, colour, above in ((_best(plan), style.GREY, 0), (plan, style.INK, 16)):
        x = _across(at.interval_s)
        sheet.line([(x, _TOP - above), (x, _TOP + _HEIGHT)], colour, dashed=not above)
        sheet.dot(x, _down(at.waste, top), colour)


def _words(name: str, plan: Saving) -> str:
    return f"{name}: {format_duration(plan.interval_s)}, {_percent(plan.waste)}"


def _legend(sheet: Sheet, plan: Saving, dots: Sequence[str]) -> None:
    rows = [(style.INK, "in all", plan.waste)]
    rows += [(_LOOKS[name], name, part) for name, part in plan.parts.items()]
    for place, (colour, name, part) in enumerate(rows):
        x, y = _LEFT + 240 * (place % 2), _TOP + _HEIGHT + 52 + 18 * (place // 2)
        sheet.line([(x, y - 4), (x + 26, y - 4)], colour, 2, dashed=place > 0)
        sheet.write(x + 33, y, f"{name}, at yours {_percent(part)}")
    for name in dots:
        y = _TOP + _HEIGHT + 88
        sheet.dot(_LEFT + 13, y - 4, style.WHITE, radius=4)
        sheet.write(_LEFT + 33, y, name)
