"""How far a learner's guesses were off: by topic, overall, and the largest misses."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checking import progress
from course_lib.checking.gaps import gap_of, how_far

# A prediction's topic is that of its unit or, without one, what its chapter is mostly about. Bytes
# are messages in the chapters on messages, memory in the others.
_UNITS = {
    **dict.fromkeys(("FLOP", "FLOP/s", "TFLOP/s"), "FLOPs"),
    **dict.fromkeys(("s", "ms", "µs", "min", "h", "days"), "time"),
    **dict.fromkeys(("B", "KB", "MB", "GB", "GiB"), "memory"),
}
_CHAPTERS = {
    **dict.fromkeys((3, 4, 8), "memory"),
    **dict.fromkeys((6, 7, 9, 10, 12, 13, 14), "messages"),
    **dict.fromkeys((11, 15, 16, 17), "time"),
    5: "FLOPs",
}
TOPICS = ("memory", "messages", "time", "FLOPs", "counts")


@dataclass(frozen=True)
class Guess:
    """A prediction and the values that it was compared with; None for those not known (yet)."""

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
        """yours / found; None if one of them is 0 or missing, or if their signs differ."""
        if not self.found or not self.yours or (self.found > 0) != (self.yours > 0):
            return None
        return self.yours / self.found

    @property
    def gap(self) -> float | None:
        """(measured - theory) / |theory|, whatever the guess was; None if one is missing."""
        if self.theory is None or self.measured is None:
            return None
        return gap_of(self.theory, self.measured)

    @property
    def words(self) -> str:
        """How far the guess is off, in words such as "2.33 × too low"."""
        return "not compared yet" if self.found is None else how_far(self.yours, self.found)


def guesses(predictions: Mapping[str, Mapping[str, Any]]) -> list[Guess]:
    """All committed guesses, sorted by chapter; `predictions` come from the progress file."""

    def chapter(key: str) -> tuple[float, str]:
        number = key.partition(".")[0]
        return (float(number) if number.isdigit() else math.inf, key)

    return [
        Guess(
            key=key,
            question=kept.get("question", ""),
            unit=kept.get("unit", ""),
            topic=topic_of(key, kept.get("unit", "")),
            yours=kept["yours"],
            found=kept.get("found"),
            theory=kept.get("theory"),
            measured=kept.get("measured"),
        )
        for key, kept in sorted(predictions.items(), key=lambda pair: chapter(pair[0]))
        if "yours" in kept
    ]


def topic_of(key: str, unit: str) -> str:
    """The topic of a prediction: by its unit, else by the chapter at the front of its key."""
    number = key.partition(".")[0]
    by_unit = _UNITS.get(unit, "")
    by_chapter = _CHAPTERS.get(int(number), "counts") if number.isdigit() else "counts"
    if (by_unit, by_chapter) == ("memory", "messages"):
        return "messages"
    return by_unit or by_chapter


def by_topic(made: Sequence[Guess]) -> dict[str, list[float]]:
    """The factors yours / found of all guesses that have one, by topic, without empty topics."""
    grouped: dict[str, list[float]] = {topic: [] for topic in TOPICS}
    for one in made:
        if one.factor is not None:
            grouped[one.topic].append(one.factor)
    return {topic: factors for topic, factors in grouped.items() if factors}


def typical_miss(made: Sequence[Guess] | None = None) -> float | None:
    """The median factor, at least 1, by which guesses were off in either direction.

    `made` None: all guesses of this learner. Returns None if no guess has a factor.
    """
    if made is None:
        made = guesses(progress.read()["predictions"])
    misses = [max(one.factor, 1 / one.factor) for one in made if one.factor]
    return statistics.median(misses) if misses else None


def largest_misses(made: Sequence[Guess], count: int = 5) -> list[Guess]:
    """The `count` guesses that were off by the largest factors above 1.01, largest first."""
    off = [one for one in made if one.factor and one.words != "right"]
    return sorted(off, key=lambda one: -abs(math.log(one.factor or 1)))[:count]
