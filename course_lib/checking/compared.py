"""You, theory and measured: three columns of text, or a card with a line of numbers."""

from dataclasses import dataclass

from course_lib.checking import cards
from course_lib.checking.gaps import gap_of, how_far, in_words, judged, percent

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
