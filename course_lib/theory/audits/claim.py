"""A published number compared with two recomputed ones: on its own terms and on the right ones."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from course_lib.checked import NotNegative, Text, check_public
from course_lib.validation import number

# Keys: whether the claim agrees with its own terms, and whether it agrees with the right ones.
VERDICTS = {
    (True, True): "right",
    (True, False): "right on its own terms",
    (False, True): "right number, other terms",
    (False, False): "wrong",
}


@dataclass(frozen=True)
class Claim:
    """One number that a source claims, and the two numbers that it is checked against.

    `said`: the published value. `own_terms`: recomputed under the source's own assumptions, None if
    it does not state them. `found`: recomputed under the right ones, which `because` explains.
    `within`: relative difference up to which two numbers agree, since sources round. The verdict is
    always computed from the three numbers.
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
        """found / said; 1 if both are 0, and 0 if only `said` is."""
        if self.said < 1e-30:
            return float(self.found == self.said)
        return self.found / self.said

    def explain(self) -> str:
        """The claim with its three numbers, then the verdict and the reason for it."""
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
