"""A published number beside two of ours: on the source's own terms, and on the right ones."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from course_lib.checked import NotNegative, Text, check_public
from course_lib.validation import number

# By whether what is said agrees with its own terms, and with what is found on the right ones.
VERDICTS = {
    (True, True): "right",
    (True, False): "right on its own terms",
    (False, True): "right number, other terms",
    (False, False): "wrong",
}


@dataclass(frozen=True)
class Claim:
    """`said` by a source; `own_terms`: recomputed as it says; `found`: as it should be.

    `own_terms` None: the source does not say how it got there. `because`: what the right terms are.
    `within`: the relative gap up to which two numbers are one, since sources round. The verdict is
    computed from the three numbers, never written down.
    """

    words: Text
    said: NotNegative
    own_terms: NotNegative | None
    found: NotNegative
    because: Text
    unit: Text = ""
    within: Annotated[float, partial(number, least=0, most=1)] = 0.05

    @property
    def verdict(self) -> str:
        """One of VERDICTS."""
        own = self.own_terms is not None and self._same(self.own_terms)
        return VERDICTS[own, self._same(self.found)]

    @property
    def factor(self) -> float:
        """What is found over what is said; 1 where both are 0, 0 where only `said` is."""
        if self.said < 1e-30:
            return float(self.found == self.said)
        return self.found / self.said

    def explain(self) -> str:
        """The claim and its numbers, then the verdict with its reason."""
        own = "not told how" if self.own_terms is None else _text(self.own_terms)
        said, found = _text(self.said), _text(self.found)
        numbers = f"said {said}, on its own terms {own}, found {found} {self.unit}"
        return f"{self.words}\n    {numbers.rstrip()}\n    {self.verdict}: {self.because}"

    def _same(self, other: float) -> bool:
        return abs(other - self.said) <= self.within * abs(self.said)


@dataclass(frozen=True)
class Audit:
    """The claims of one source."""

    source: Text
    claims: tuple[Claim, ...]

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError("claims is empty: give at least one Claim")


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


check_public(globals())
