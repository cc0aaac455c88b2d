"""Predict first, then measure: the learner's number is committed before the answer is computed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from course_lib import validation
from course_lib.checking import cards, progress
from course_lib.checking.gaps import Compared, in_words, percent
from course_lib.checking.helpers import is_number, plain
from course_lib.notebook import Slot, in_notebook, show_widget


@dataclass(frozen=True)
class Prediction:
    """A number that the learner predicted; `yours` is None if there is none."""

    key: str
    yours: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        if self.yours is not None:
            _require_number("yours", self.yours)


def predict(
    key: str, question: str, *, yours: float | EllipsisType | None = None, unit: str = ""
) -> Prediction:
    """Commit the prediction `yours` before the answer is computed; `expect` compares it later.

    The first number counts; a later one is recorded as revised. With None or `...` a notebook shows
    an input box, unless a number was committed before; execution does not wait for it. Raises
    ValueError if `yours` is not a finite number.
    """
    given = None if yours is ... else yours
    prediction = Prediction(key, given, unit)
    if _number_of(prediction) is None:
        _ask(key, question, unit)
        return prediction
    first = _committed(key, question, unit, given, Slot())
    return Prediction(key, first, unit)


def expect(
    theory: float | EllipsisType,
    measured: float | EllipsisType = ...,
    within: float | None = 0.0,
    unit: str = "",
    label: str = "",
    *,
    yours: Prediction | None = None,
) -> None:
    """Show prediction, theory and measurement side by side; assert that the last two agree.

    |measured - theory| <= within × |theory|; gap = (measured - theory) / |theory|. For a time, or a
    value computed from one, pass `within=None`: its gap is shown but not judged, since other
    programs share the machine. The learner's number is never asserted, but its error is recorded.
    Without `measured` the reference is theory; with `...` for `theory` it is the measurement; then
    nothing is asserted. Raises ValueError if `theory` or `within` is not a finite number, and
    AssertionError if `measured` is not, or the gap is too large.
    """
    if within is not None:
        _require_number("within", within, least=0)
    guess = yours or Prediction("")
    name, unit = label or guess.key or "value", unit or guess.unit
    values = {}
    if not isinstance(theory, EllipsisType) or measured is ...:
        _require_number("theory", theory)
        values["theory"] = plain(theory)
    if measured is not ...:
        values["measured"] = plain(measured)
        if not (is_number(values["measured"]) and math.isfinite(values["measured"])):
            raise AssertionError(f"{name}: measured must be a finite number, got {measured!r}")
    compared = Compared(name, unit, within, {column: float(values[column]) for column in values})
    _show_comparison(compared, guess, Slot())
    if within is None or len(values) == 1:
        return
    if abs(values["measured"] - values["theory"]) > within * abs(values["theory"]):
        raise AssertionError(
            f"{name}: measured {in_words(values['measured'], unit)} against predicted "
            f"{in_words(values['theory'], unit)}, a gap of {percent(compared.gap)}, where at most "
            f"{100 * within:.3g} % is allowed"
        )


# By key: comparisons without a prediction yet, shown again when the learner commits one.
_waiting: dict[str, list[Callable[[], None]]] = {}


def _show_comparison(compared: Compared, guess: Prediction, slot: Slot) -> None:
    """Show the comparison, and record its values with the learner's number."""
    yours, key = _number_of(guess), guess.key

    def close(record: dict[str, Any]) -> None:
        for column in ("theory", "measured"):  # an earlier run may have had other columns
            record.pop(column, None)
        record.update(found=compared.last, **compared.columns)

    if yours is not None and key:
        progress.update("predictions", key, close)
    if not in_notebook():
        print(compared.text(yours))
        return
    slot.show(compared.card(yours, asked_for=bool(key)), compared.text(yours))
    if yours is None and key:
        _waiting.setdefault(key, []).append(lambda: _show_comparison(compared, guess, slot))


def _number_of(prediction: Prediction) -> float | None:
    """The learner's number: that of `prediction`, or the one committed for its key, or None."""
    if prediction.yours is not None or not prediction.key:
        return prediction.yours
    yours: float | None = progress.read()["predictions"].get(prediction.key, {}).get("yours")
    return yours


def _ask(key: str, question: str, unit: str) -> None:
    """Ask for a number: with an input box in a notebook, else by a printed text."""
    if not in_notebook():
        print(question)
        print(f"  Write your number{f' of {unit}' if unit else ''} for None, then run this again.")
        return
    from course_lib.checking.widgets import PredictionBox

    slot = Slot()

    def commit(yours: float) -> None:
        _committed(key, question, unit, yours, slot)
        for show in _waiting.pop(key, []):
            show()

    how = cards.line("Write your number in the box below and press Enter.", quiet=True)
    asked = cards.card(f"Prediction: {question}", [cards.head("?", "Predict", question), how])
    slot.show(asked, question)
    show_widget(PredictionBox(unit, commit))


def _committed(key: str, question: str, unit: str, given: float | None, slot: Slot) -> float:
    """Commit `given` unless it is None; show and return the first number, which counts."""

    def commit(record: dict[str, Any]) -> None:
        if given is None:
            return
        if "yours" not in record:
            record.update(yours=float(given), at=progress.now(), unit=unit, question=question)
            return
        revised = record.setdefault("revised", [])
        if given != (revised[-1]["yours"] if revised else record["yours"]):
            revised.append({"yours": float(given), "at": progress.now()})

    record = progress.update("predictions", key, commit)
    first: float = record["yours"]
    at, number, revised = progress.local(record["at"]), in_words(first, unit), ""
    text = f"{question}\n  Your prediction: {number}, committed {at}"
    if given is not None and first != given:
        change = in_words(float(given), unit)
        text += f"\n  The change to {change} is recorded as revised; the first one counts."
        revised = f"Your change to {change} is kept, but the first number counts."
    if not in_notebook():
        print(text)
        return first
    day, _, time = at.partition(" ")
    parts = [
        cards.head("✓", "Predicted", question),
        cards.large(number, f"committed on {day} at {time}"),
        cards.line(revised, quiet=True),
    ]
    slot.show(cards.card(f"Your prediction: {number}", parts), text)
    return first


def _require_number(name: str, value: object, least: float | None = None) -> None:
    if isinstance(value, str):
        sentence = f"{name} must be a number, got {value!r}: write only the number, no unit"
        raise ValueError(sentence)
    # Fractions and numpy's numbers are accepted as well.
    plain_value = float(value) if is_number(value) else value
    validation.number(name, plain_value, least=least, most=math.inf)
