"""How far a learner's guesses were off: by topic, on the whole, and which ones most."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checking import progress
from course_lib.checking.gaps import gap_of, how_far
from course_lib.reporting.topics import TOPICS, topic_of


@dataclass(frozen=True)
class Guess:
    """A prediction and what it was compared with; None for what is not there, or not yet."""

    key: str
    question: str
    unit: str
    topic: str
    yours: float
    found: float | None
    theory: float | None
    measured: float | None

    @property
    def factor(self) -> float | None:
        """yours / found; None where one of them is 0 or missing, or their signs differ."""
        if not self.found or not self.yours or (self.found > 0) != (self.yours > 0):
            return None
        return self.yours / self.found

    @property
    def gap(self) -> float | None:
        """(measured - theory) / |theory|: what is left to explain when the guess is forgotten."""
        if self.theory is None or self.measured is None:
            return None
        return gap_of(self.theory, self.measured)

    @property
    def words(self) -> str:
        """How far the guess is off: "2.33 × too low"."""
        return "not compared yet" if self.found is None else how_far(self.yours, self.found)


def guesses(predictions: Mapping[str, Mapping[str, Any]]) -> list[Guess]:
    """All that were committed, by chapter; `predictions` are those of the progress file."""
    made = [(key, kept) for key, kept in predictions.items() if "yours" in kept]
    return [_guess(key, kept) for key, kept in sorted(made, key=lambda pair: _by_chapter(pair[0]))]


def by_topic(made: Sequence[Guess]) -> dict[str, list[float]]:
    """yours / found of all guesses that have such a factor, by topic; no empty topics."""
    found = {topic: [one.factor for one in made if one.topic == topic] for topic in TOPICS}
    factors = {topic: [x for x in its if x is not None] for topic, its in found.items()}
    return {topic: its for topic, its in factors.items() if its}


def typical_miss(made: Sequence[Guess] | None = None) -> float | None:
    """By which factor half of the guesses were off, or more, in either direction; at least 1.

    `made` None: all that this learner has made. The result is None without a guess that has a
    factor.
    """
    if made is None:
        made = guesses(progress.read()["predictions"])
    misses = [max(one.factor, 1 / one.factor) for one in made if one.factor]
    return statistics.median(misses) if misses else None


def largest_misses(made: Sequence[Guess], count: int = 5) -> list[Guess]:
    """The guesses that were off by the largest factors, more than 1.01, the largest first."""
    off = [one for one in made if one.factor and one.words != "right"]
    return sorted(off, key=lambda one: -abs(math.log(one.factor or 1)))[:count]


def _guess(key: str, kept: Mapping[str, Any]) -> Guess:
    return Guess(
        key=key,
        question=kept.get("question", ""),
        unit=kept.get("unit", ""),
        topic=topic_of(key, kept),
        yours=kept["yours"],
        found=kept.get("found"),
        theory=kept.get("theory"),
        measured=kept.get("measured"),
    )


def _by_chapter(key: str) -> tuple[float, str]:
    chapter = key.partition(".")[0]
    return (float(chapter) if chapter.isdigit() else math.inf, key)
