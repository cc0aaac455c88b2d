"""Audits: the learner's verdict on a published claim, checked part by part, kept as a sentence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from course_lib.checking.exercises import Exercise, Wrong, exercise, keep
from course_lib.checking.helpers import (
    described,
    gave,
    is_number,
    number_of,
    require_answer,
    same,
    show,
)

VERDICTS = {
    "holds": "holds",
    "does not hold": "does not hold",
    "holds only if": "holds only under a condition",
}
PARTS = ("found", "verdict", "because", "source")
_CLOSE = 0.01
_NOT = {
    "holds": "lay your number beside the claimed one",
    "does not hold": "is there a case, perhaps the published one, in which it is right?",
    "holds only if": "is your number from another case than the one the claim speaks of?",
}


@dataclass(frozen=True)
class Audit:
    """A claim and the right answer: the number `found` in `unit`, to 1 %, and why (`because`).

    `causes` and `sources` are the learner's choices; each maps to "" if it is right, else to a
    sentence on why it is wrong. `mistakes` maps a wrong number to the likely mistake.
    """

    claim: str
    found: float
    unit: str
    because: str
    verdict: str
    causes: Mapping[str, str]
    sources: Mapping[str, str]
    mistakes: Mapping[float, str] = field(default_factory=dict)

    def check(self, answer: Any) -> None:
        """Raise `Wrong` for the first part of the answer that is wrong."""
        require_answer(answer)
        if not isinstance(answer, dict):
            raise Wrong(f"wants a dict with {', '.join(PARTS)}, got {described(answer)}")
        for part in PARTS:
            if part not in answer:
                raise Wrong(f"gave nothing for {part!r}, expected all of {', '.join(PARTS)}")
        self._check_number(answer["found"])
        _chosen(answer["verdict"], "verdict", VERDICTS)
        if answer["verdict"] != self.verdict:
            raise Wrong(
                f"gave {answer['verdict']!r} for 'verdict', expected another: "
                f"{_NOT[answer['verdict']]}",
                self.because,
            )
        for part, known in (("because", self.causes), ("source", self.sources)):
            _chosen(answer[part], part, known)
            if said := known[answer[part]]:
                raise Wrong(f"gave {answer[part]!r} for {part!r}, expected another: {said}")
        keep(self.because)

    def _check_number(self, given: Any) -> None:
        number = number_of(given, self.unit)
        if not is_number(number):
            raise Wrong(f"wants a number ({self.unit}) for 'found', got {described(given)}")
        if same(number, self.found, _CLOSE, self.unit):
            return
        for mistake, said in self.mistakes.items():
            if same(number, mistake, _CLOSE, self.unit):
                raise Wrong(
                    f"gave {show(number)} {self.unit} for 'found', expected another number: {said}",
                    self.because,
                )
        raise gave(number, self.found, self.because, self.unit, what="for 'found' it")

    def sentence(self, answer: Mapping[str, Any]) -> str:
        """The learner's verdict in one sentence, for the progress file."""
        return (
            f'"{self.claim}" {VERDICTS[self.verdict]}: {number_of(answer["found"], self.unit):.3g} '
            f"{self.unit}, because of {answer['because']} ({answer['source']})"
        )


def audit_exercise(id: str, audit: Callable[[], Audit]) -> Exercise:
    """The exercise that audits one claim; `audit` is called when an answer is checked."""
    declare = exercise(id, verdict=lambda answer: audit().sentence(answer))
    return declare(lambda answer: audit().check(answer))


def _chosen(given: object, part: str, known: Any) -> None:
    """Raise `Wrong` unless `given` is one of the texts in `known`."""
    if not isinstance(given, str) or given not in known:
        listed = ", ".join(map(repr, known))
        raise Wrong(f"wants one of {listed} for {part!r}, got {described(given)}")
