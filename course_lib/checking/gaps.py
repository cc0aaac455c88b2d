"""Numbers in words, how far one is from another, and both beside the learner's."""

import math
from dataclasses import dataclass

from course_lib.checking import cards
from course_lib.theory.inputs.units import power_of_ten

_NEAR = 0.01  # a guess so near needs no factor
_TINY_GAP = 1e-5


def gap_of(predicted: float, measured: float) -> float:
    """(measured - predicted) / |predicted|; around 0 it is 0 for an exact hit, else ± infinity."""
    difference = float(measured - predicted)
    if predicted == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / abs(predicted)


def how_far(guess: float, found: float) -> str:
    """How far a guess is off, as a factor where there is one: "2.33 × too low"."""
    if abs(guess - found) <= _NEAR * abs(found):
        return "right"
    if guess == 0 or found == 0 or (guess < 0) != (found < 0):
        return f"off by {in_words(abs(guess - found), '')}"
    factor = guess / found
    high, times = ("high", factor) if factor > 1 else ("low", 1 / factor)
    return f"{in_words(times, '', 3)} × too {high}"


def in_words(value: float, unit: str, digits: int = 6) -> str:
    """A number with its unit, as a table has it: "1,024 B"; all digits of a whole number."""
    number, size = float(value), abs(value)
    if size >= 10**15 or 0 < size < 1e-4:
        mantissa, _, power = f"{number:.{digits - 1}e}".partition("e")
        ten = power_of_ten(int(power))
        text = ten if float(mantissa) == 1 else f"{float(mantissa):g} × {ten}"
    elif number.is_integer():
        text = f"{int(value):,}"
    else:
        text = f"{number:,.{digits}g}" if size < 10**digits / 2 else f"{number:,.0f}"
    return f"{text} {unit}".rstrip()


def percent(gap: float) -> str:
    """A gap as text: "+3.1 %", "0 %"."""
    if gap and abs(gap) < _TINY_GAP:
        return "under 0.001 %"
    if math.isinf(gap):
        return f"{gap:+} %"
    sign = "-" if gap < 0 else "+" * (gap > 0)
    return f"{sign}{in_words(abs(100 * gap), '', 3)} %"


def judged(gap: float, within: float | None) -> tuple[str, str]:
    """A gap in large type, and a sentence on it: ("3.1 %", "Close: measured 3.1 % …").

    Without `within` the gap is that of a time: no verdict.
    """
    if gap == 0:
        return "no gap", "Exact: the measurement is what theory says."
    if abs(gap) < _TINY_GAP:
        return "no gap", "Equal but for rounding: they differ by less than 0.001 %."
    size = "∞ %" if math.isinf(gap) else percent(abs(gap)).lstrip("+")
    side = "above" if gap > 0 else "below"
    if within is None:
        return size, f"Measured {size} {side} theory. A time is shown and not judged."
    allowed = f"up to {in_words(100 * within, '', 3)} % allowed"
    word = "Close" if abs(gap) <= within else "Too far"
    return size, f"{word}: measured {size} {side} theory ({allowed})."


_APART = 0.01


@dataclass(frozen=True)
class Compared:
    """What a prediction is compared with: `columns` by "theory" and "measured", or one of them.

    `within`: the relative gap between those two that is allowed; None for a time, which is not
    judged.
    """

    name: str
    unit: str
    within: float | None
    columns: dict[str, float]

    @property
    def last(self) -> float:
        """The number that has the last word."""
        return list(self.columns.values())[-1]

    @property
    def gap(self) -> float:
        """(measured - theory) / |theory|; 0 where one of them is missing."""
        return gap_of(self.columns.get("theory", self.last), self.last)

    def text(self, yours: float | None) -> str:
        """Three columns, the learner's first."""
        rows = [("you", "–", "")]
        if yours is not None:
            rows = [("you", self._words(yours), how_far(yours, self.last))]
        for head, value in self.columns.items():
            gap = f"gap {percent(self.gap)}" if head == "measured" and len(rows) > 1 else ""
            rows.append((head, self._words(value), gap))
        widths = [max(map(len, row)) + 4 for row in rows]
        lines = [self.name]
        for line in zip(*rows, strict=True):
            words = [f"{word:>{width}}" for word, width in zip(line, widths, strict=True)]
            lines += ["".join(words).rstrip()] if any(line) else []
        return "\n".join(lines)

    def card(self, yours: float | None, asked_for: bool) -> str:
        """The gap in large type above the line; folded until a number `asked_for` is there."""
        title = cards.head("", self.name, "")
        inner = self._judgement(yours) + self._picture(yours)
        if yours is not None or not asked_for:
            return cards.card(self.name, [title, inner])
        ask = cards.line("You have not predicted this yet. Write your number in the box above.")
        return cards.card(self.name, [title, ask, cards.folded("Show the answer anyway", inner)])

    def _judgement(self, yours: float | None) -> str:
        off = cards.line("" if yours is None else self._off(yours))
        if len(self.columns) > 1:
            return cards.large(*judged(self.gap, self.within)) + off
        source = "measured" if "measured" in self.columns else "according to theory"
        return cards.large(self._words(self.last), source) + off

    def _off(self, yours: float) -> str:
        """How far the learner was off, as a sentence."""
        far = how_far(yours, self.last)
        if far.startswith("off by"):
            far = f"off by {self._words(abs(yours - self.last))}"
        return f"You predicted {self._words(yours)}: {far}."

    def _picture(self, yours: float | None) -> str:
        from course_lib import figures

        values = {"you": yours} if yours is not None else {}
        return figures.number_line({**values, **self.columns}, self._words).to_svg()

    def _words(self, value: float) -> str:
        """Four digits tell two numbers apart that differ by more than 1 %."""
        return in_words(value, self.unit, digits=4 if abs(self.gap) > _APART else 6)
