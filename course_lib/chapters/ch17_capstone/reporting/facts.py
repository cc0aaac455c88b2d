"""Everything that a report is made of, gathered from what the learner has done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.chapters.ch17_capstone.reporting import texts
from course_lib.chapters.ch17_capstone.reporting.guesses import Guess, guesses
from course_lib.chapters.ch17_capstone.reporting.kept import KeptPlan, KeptRun
from course_lib.chapters.ch17_capstone.reporting.texts import Texts
from course_lib.checking import progress, races
from course_lib.checking.exercises import chapters, exercises_of

LARGE_GAP = 0.10  # between theory and measurement; larger ones want an explanation


@dataclass(frozen=True)
class Chapter:
    """The exercises of one chapter: how many there are, are passed, and had their solution seen."""

    number: int
    exercises: int
    passed: int
    seen: int


@dataclass(frozen=True)
class Facts:
    """What a learner has done until now; `parts` are those of `races.report`."""

    at: str
    name: str
    guesses: Sequence[Guess]
    chapters: Sequence[Chapter]
    verdicts: Mapping[str, str]
    parts: Sequence[Mapping[str, Any]]
    plan: KeptPlan | None
    run: KeptRun | None
    texts: Texts

    @property
    def compared(self) -> list[Guess]:
        """The guesses that could be compared with something."""
        return [guess for guess in self.guesses if guess.found is not None]

    @property
    def large_gaps(self) -> list[Guess]:
        """Where theory and measurement are more than 10 % apart."""
        return [one for one in self.guesses if one.gap is not None and abs(one.gap) > LARGE_GAP]

    @property
    def unexplained(self) -> list[Guess]:
        """The large gaps without a cause."""
        return [one for one in self.large_gaps if not self.texts.explains(one.key)]


def gather(words: Path, name: str = "", race: bool = False) -> Facts:
    """The facts of whoever runs this, whose own words stand in the file `words`.

    `race` measures their parts, which takes seconds each.
    """
    kept = progress.read()
    capstone, records = kept["capstone"], kept["exercises"]
    audited = [key for key, record in records.items() if record.get("verdict")]
    return Facts(
        at=progress.now(),
        name=name,
        guesses=guesses(kept["predictions"]),
        chapters=[_chapter(number, records) for number in chapters()],
        verdicts={key: records[key]["verdict"] for key in sorted(audited, key=_by_number)},
        parts=races.report(measured=race)["parts"],
        plan=KeptPlan.read(capstone.get("plan", {})),
        run=KeptRun.read(capstone.get("run", {})),
        texts=texts.read(words),
    )


def _chapter(number: int, records: Mapping[str, Mapping[str, Any]]) -> Chapter:
    own = [records.get(exercise.id, {}) for exercise in exercises_of(number)]
    passed = sum(record.get("status") == "pass" for record in own)
    return Chapter(number, len(own), passed, sum(record.get("seen", False) for record in own))


def _by_number(key: str) -> list[int]:
    return [*map(int, key.split("."))]
