"""How far a learner's guesses were off: by topic, overall, and the largest misses."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checking import progress
from course_lib.checking.gaps import gap_of, how_far

# The topic of each prediction, so that guesses can be grouped.
TOPICS = ("memory", "messages", "time", "FLOPs", "counts")
_KEYS = {
    "memory": "2.memory 3.all_in_bf16 3.with_master_copy 3.eight_bit 3.over_time 3.leak "
    "3.two_ranks 4.per_sbh 4.with_scores 4.peak 8.stage1 8.stored 8.moment 9.extra "
    "9.allocations 10.plain 10.cut 11.held_on_2 14.gathered 17.xl",
    "messages": "6.times 6.between 6.uneven 6.tree 6.nccl 7.all_reduces 7.more_copies 8.again "
    "8.stage3 9.gathers 9.scatters 9.waiting 9.hiding 9.refined 9.copies 9.again "
    "10.four 10.sp 10.count 10.left 10.share_bytes 11.messages 11.chunks 11.wire "
    "12.ring_bytes 12.gathered 12.least 13.tp_bytes 13.four 13.accumulated 14.factor "
    "14.exchange",
    "time": "2.time 5.days 5.lost 6.slow 6.ms 6.alpha 6.rails 7.step 7.tail 7.end 10.faster "
    "10.rescued 11.idle 11.many 11.twice 13.slower 13.shared 13.by_hand 13.v3_waits "
    "14.saturated 14.swap 15.interval 16.factor 16.words 16.busy 17.days 17.time "
    "17.ddp 17.polite 17.kept 17.token",
    "FLOPs": "4.factor 5.first_layer 5.factor 5.gain 5.meta 12.active 12.more_experts "
    "12.zigzag 17.bloom",
}
_BY_KEY = {key: topic for topic, keys in _KEYS.items() for key in keys.split()}
_BY_UNIT = {
    "FLOPs": ("FLOP", "FLOP/s", "TFLOP/s"),
    "memory": ("B", "KB", "MB", "GB", "GiB"),
    "time": ("s", "ms", "µs", "min", "h", "days"),
}


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
    """The topic of a prediction by its key, or by its unit if the key is not listed."""
    by_unit = (topic for topic, units in _BY_UNIT.items() if unit in units)
    return _BY_KEY.get(key) or next(by_unit, "counts")


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
