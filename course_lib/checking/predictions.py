"""Predict first, then measure: the learner's number is committed before the measurement runs."""

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from course_lib import validation
from course_lib.checking import progress
from course_lib.checking.helpers import is_number, plain


@dataclass(frozen=True)
class Prediction:
    """A number foretold by the course and, if given, by the learner; ValueError if not finite."""

    key: str
    course: float
    yours: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        _require_number("course", self.course)
        if self.yours is not None:
            _require_number("yours", self.yours)

    @property
    def value(self) -> float:
        """The learner's number if there is one, else the course's."""
        return self.course if self.yours is None else self.yours


def predict(
    key: str,
    question: str,
    *,
    course: float,
    yours: float | EllipsisType | None = None,
    unit: str = "",
) -> Prediction:
    """Commit `yours` before measuring; with None or `...` the course's own prediction is taken.

    The first number stays, a later one is recorded as revised. Raises ValueError when a value is
    not a finite number.
    """
    given = None if yours is ... else yours
    prediction = Prediction(key, course, given, unit)
    print(question)
    if given is None:
        taken = _text(course, unit)
        print(f"  You gave no number (yours=None), so the course's own is taken: {taken}")
        return prediction
    record = progress.update("predictions", key, lambda kept: _commit(kept, float(given), unit))
    first = record["yours"]
    print(f"  Your prediction: {_text(first, unit)}, committed {record['at']}")
    if first != given:
        print(f"  The change to {_text(given, unit)} is recorded as revised; the first one counts.")
    return Prediction(key, course, first, unit)


def expect(
    predicted: float | Prediction,
    measured: float,
    within: float = 0.0,
    unit: str = "",
    label: str = "",
) -> None:
    """Print both numbers and the gap; assert |measured - predicted| <= within × |predicted|.

    gap = (measured - predicted) / |predicted|, a fraction; a learner's number is never asserted.
    Raises ValueError for a prediction or `within` that is not a finite number, AssertionError else.
    """
    prediction = predicted if isinstance(predicted, Prediction) else Prediction("", predicted)
    _require_number("within", within, least=0)
    name, unit = label or prediction.key or "value", unit or prediction.unit
    found = plain(measured)
    if not is_number(found) or not math.isfinite(found):
        raise AssertionError(f"{name}: measured must be a finite number, got {measured!r}")
    gap = gap_of(prediction.course, found)
    foretold, seen = _text(prediction.course, unit), _text(found, unit)
    print(f"{name}: predicted {foretold}, measured {seen}, gap {_percent(gap)}")
    if prediction.yours is not None:
        own = gap_of(prediction.yours, found)
        print(f"  your prediction was {_text(prediction.yours, unit)}, gap {_percent(own)}")
    if abs(found - prediction.course) > within * abs(prediction.course):
        raise AssertionError(
            f"{name}: measured {seen} against predicted {foretold}, a gap of {_percent(gap)}, "
            f"where at most {100 * within:.3g} % is allowed"
        )


def gap_of(predicted: float, measured: float) -> float:
    """(measured - predicted) / |predicted|; around 0 it is 0 for an exact hit, else ± infinity."""
    difference = float(measured - predicted)
    if predicted == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / abs(predicted)


def _commit(record: dict[str, Any], yours: float, unit: str) -> None:
    if "yours" not in record:
        record.update(yours=yours, unit=unit, at=progress.now())
        return
    revised = record.setdefault("revised", [])
    if yours != (revised[-1]["yours"] if revised else record["yours"]):
        revised.append({"yours": yours, "at": progress.now()})


def _require_number(name: str, value: object, least: float | None = None) -> None:
    if isinstance(value, str):
        sentence = f"{name} must be a number, got {value!r}: write only the number, no unit"
        raise ValueError(sentence)
    # Fractions and numpy's numbers are numbers, too.
    plain_value = float(value) if is_number(value) else value
    validation.number(name, plain_value, least=least, most=math.inf)


def _text(value: float, unit: str) -> str:
    whole = float(value).is_integer() and abs(value) < 10**15
    number = f"{int(value):,}" if whole else f"{value:,.6g}"
    return f"{number} {unit}".rstrip()


def _percent(gap: float) -> str:
    return f"{100 * gap:+.3g} %" if gap else "0 %"
