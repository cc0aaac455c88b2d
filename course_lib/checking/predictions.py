"""Predict first, then measure: the learner's number is committed before the answer is computed."""

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from course_lib import validation
from course_lib.checking import progress
from course_lib.checking.helpers import is_number, plain

_NEAR = 0.01  # a guess so near needs no factor


@dataclass(frozen=True)
class Prediction:
    """A number that the learner foretold; `yours` is None where none was given."""

    key: str
    yours: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if self.yours is not None:
            _require_number("yours", self.yours)


def predict(
    key: str, question: str, *, yours: float | EllipsisType | None = None, unit: str = ""
) -> Prediction:
    """Commit `yours` before anything is computed; `expect` tells later how far off it was.

    The first number stays, a later one is recorded as revised. With None or `...` nothing is
    committed, and the notebook goes on. Raises ValueError when it is not a finite number.
    """
    given = None if yours is ... else yours
    prediction = Prediction(key, given, unit)
    print(question)
    if given is None:
        print(f"  Write your number{f' of {unit}' if unit else ''} for None, then run this again.")
        return prediction
    asked = {"unit": unit, "question": question}
    record = progress.update("predictions", key, lambda kept: _commit(kept, float(given), asked))
    first = record["yours"]
    print(f"  Your prediction: {in_words(first, unit)}, committed {record['at']}")
    if first != given:
        print(
            f"  The change to {in_words(given, unit)} is recorded as revised; the first one counts."
        )
    return Prediction(key, first, unit)


def expect(
    theory: float,
    measured: float | EllipsisType = ...,
    within: float = 0.0,
    unit: str = "",
    label: str = "",
    *,
    yours: Prediction | None = None,
) -> None:
    """Print three columns, you, theory and measured, and assert that the last two agree.

    |measured - theory| <= within × |theory|; gap = (measured - theory) / |theory|. The learner's
    number is never asserted; how far it was off what was found is kept. Without `measured` theory
    has the last word. Raises ValueError for a `theory` or `within` that is not a finite number,
    AssertionError else.
    """
    _require_number("theory", theory)
    _require_number("within", within, least=0)
    guess = yours or Prediction("")
    name, unit = label or guess.key or "value", unit or guess.unit
    if isinstance(measured, EllipsisType):
        _tell(name, unit, guess, {"theory": (theory, "")})
        return
    found = plain(measured)
    if not is_number(found) or not math.isfinite(found):
        raise AssertionError(f"{name}: measured must be a finite number, got {measured!r}")
    gap = _percent(gap_of(theory, found))
    _tell(name, unit, guess, {"theory": (theory, ""), "measured": (found, f"gap {gap}")})
    if abs(found - theory) > within * abs(theory):
        raise AssertionError(
            f"{name}: measured {in_words(found, unit)} against predicted "
            f"{in_words(theory, unit)}, a gap of {gap}, where at most {100 * within:.3g} % is "
            "allowed"
        )


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
    return f"{factor:.3g} × too high" if factor > 1 else f"{1 / factor:.3g} × too low"


def _tell(name: str, unit: str, guess: Prediction, columns: dict[str, tuple[float, str]]) -> None:
    """Print the table, the learner's column first, and keep what was found for their number."""
    values = {head: float(value) for head, (value, _) in columns.items()}
    found = list(values.values())[-1]
    mine = ("you", "–", "")
    if guess.yours is not None:
        mine = ("you", in_words(guess.yours, unit), how_far(guess.yours, found))
        if guess.key:
            progress.update("predictions", guess.key, lambda kept: _close(kept, found, values))
    rows = [mine, *((head, in_words(value, unit), note) for head, (value, note) in columns.items())]
    print(name)
    for line in zip(*rows, strict=True):
        words = [f"{word:>{max(map(len, row)) + 4}}" for word, row in zip(line, rows, strict=True)]
        if any(line):
            print("".join(words).rstrip())


def _commit(record: dict[str, Any], yours: float, asked: dict[str, str]) -> None:
    if "yours" not in record:
        record.update(yours=yours, at=progress.now(), **asked)
        return
    revised = record.setdefault("revised", [])
    if yours != (revised[-1]["yours"] if revised else record["yours"]):
        revised.append({"yours": yours, "at": progress.now()})


def _close(record: dict[str, Any], found: float, values: dict[str, float]) -> None:
    record.pop("measured", None)  # of an earlier run, in which something was measured
    record.update(found=found, **values)


def _require_number(name: str, value: object, least: float | None = None) -> None:
    if isinstance(value, str):
        sentence = f"{name} must be a number, got {value!r}: write only the number, no unit"
        raise ValueError(sentence)
    # Fractions and numpy's numbers are numbers, too.
    plain_value = float(value) if is_number(value) else value
    validation.number(name, plain_value, least=least, most=math.inf)


def in_words(value: float, unit: str, digits: int = 6) -> str:
    """A number with its unit, as a table has it: "1,024 B"; all digits of a whole number."""
    whole = float(value).is_integer() and abs(value) < 10**15
    number = f"{int(value):,}" if whole else f"{value:,.{digits}g}"
    return f"{number} {unit}".rstrip()


def _percent(gap: float) -> str:
    return f"{100 * gap:+.3g} %" if gap else "0 %"
