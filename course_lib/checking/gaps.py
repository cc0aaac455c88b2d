"""Formats numbers and gaps, and compares a prediction with theory and measurement."""

import math
from dataclasses import dataclass

from course_lib.checking import cards
from course_lib.theory.inputs.units import power_of_ten

_NEAR = 0.01  # relative error below which a guess counts as right
_TINY_GAP = 1e-5


def gap_of(predicted: float, measured: float) -> float:
    """(measured - predicted) / |predicted|; for predicted = 0, 0 if equal, else ± infinity."""
    difference = float(measured - predicted)
    if predicted == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / abs(predicted)


def how_far(guess: float, found: float) -> str:
    """How far a guess is off, as a factor if possible: "2.33 × too low"."""
    if abs(guess - found) <= _NEAR * abs(found):
        return "right"
    if guess == 0 or found == 0 or (guess < 0) != (found < 0):
        return f"off by {in_words(abs(guess - found), '')}"
    factor = guess / found
    high, times = ("high", factor) if factor > 1 else ("low", 1 / factor)
    return f"{in_words(times, '', 3)} × too {high}"


def in_words(value: float, unit: str, digits: int = 6) -> str:
    """Format a number with its unit: "1,024 B"; a whole number with all its digits."""
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
    """Format a relative gap: "+3.1 %", "0 %"."""
    if gap and abs(gap) < _TINY_GAP:
        return "under 0.001 %"
    if math.isinf(gap):
        return f"{gap:+} %"
    sign = "-" if gap < 0 else "+" * (gap > 0)
    return f"{sign}{in_words(abs(100 * gap), '', 3)} %"


def judged(gap: float, within: float | None) -> tuple[str, str]:
    """(headline, sentence) on a gap: ("3.1 %", "Close: measured 3.1 % …").

    Without `within` the gap gets no verdict: it depends on the machine.
    """
    if gap == 0:
        return "no gap", "Exact: the measurement is what theory says."
    if abs(gap) < _TINY_GAP:
        return "no gap", "Equal but for rounding: they differ by less than 0.001 %."
    size = "∞ %" if math.isinf(gap) else percent(abs(gap)).lstrip("+")
    side = "above" if gap > 0 else "below"
    if within is None:
        return size, f"Measured {size} {side} theory. The gap is shown, not judged."
    allowed = f"up to {in_words(100 * within, '', 3)} % allowed"
    word = "Close" if abs(gap) <= within else "Too far"
    return size, f"{word}: measured {size} {side} theory ({allowed})."


_APART = 0.01  # relative gap above which 4 digits tell two numbers apart


@dataclass(frozen=True)
class Compared:
    """The values that a prediction is compared with: `columns` has "theory", "measured" or both.

    `within`: the allowed relative gap between the two; None for a gap that is not judged.
    """

    name: str
    unit: str
    within: float | None
    columns: dict[str, float]

    @property
    def last(self) -> float:
        """The reference value: measured if available, else theory."""
        return list(self.columns.values())[-1]

    @property
    def gap(self) -> float:
        """(measured - theory) / |theory|; 0 if one of them is missing."""
        return gap_of(self.columns.get("theory", self.last), self.last)

    def text(self, yours: float | None) -> str:
        """A plain-text table with up to three columns: you, theory, measured."""
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
        """The gap and a number line as HTML, folded if a prediction is `asked_for` but missing."""
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
        """A sentence on how far the learner's prediction was off."""
        far = how_far(yours, self.last)
        if far.startswith("off by"):
            far = f"off by {self._words(abs(yours - self.last))}"
        return f"You predicted {self._words(yours)}: {far}."

    def _picture(self, yours: float | None) -> str:
        from course_lib import figures

        values = {"you": yours} if yours is not None else {}
        return figures.number_line({**values, **self.columns}, self._words).to_svg()

    def _words(self, value: float) -> str:
        """Format a value: four digits are enough if the gap is more than 1 %."""
        return in_words(value, self.unit, digits=4 if abs(self.gap) > _APART else 6)
