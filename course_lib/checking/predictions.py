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


def _asked(question: str) -> str:
    """The question, before there is a number."""
    how = "Write your number in the box below and press Enter."
    return cards.card(
        f"Prediction: {question}",
        [cards.head("?", "Predict", question), cards.line(how, quiet=True)],
    )


def _committed(question: str, unit: str, yours: float, at: str, change: float | None) -> str:
    """The number that counts; `change`: a later one, which does not."""
    revised = ""
    if change is not None:
        revised = f"Your change to {in_words(change, unit)} is kept, but the first number counts."
    day, _, time = at.partition(" ")
    return cards.card(
        f"Your prediction: {in_words(yours, unit)}",
        [
            cards.head("✓", "Predicted", question),
            cards.large(in_words(yours, unit), f"committed on {day} at {time}"),
            cards.line(revised, quiet=True),
        ],
    )


@dataclass(frozen=True)
class Prediction:
    """A number that the learner predicted; `yours` is None where none was given."""

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

    The first number stays, a later one is recorded as revised. With None or `...` a notebook shows
    a box to write the number in, unless one was committed before; nothing waits for it. Raises
    ValueError when `yours` is not a finite number.
    """
    given = None if yours is ... else yours
    prediction = Prediction(key, given, unit)
    asked = {"unit": unit, "question": question}
    if given is None and _number_of(prediction) is None:
        _ask(key, asked)
        return prediction
    record = _recorded(key, asked, given)
    _show_committed(asked, record, given, Slot())
    return Prediction(key, record["yours"], unit)


def expect(
    theory: float | EllipsisType,
    measured: float | EllipsisType = ...,
    within: float | None = 0.0,
    unit: str = "",
    label: str = "",
    *,
    yours: Prediction | None = None,
) -> None:
    """Show you, theory and measured side by side, and assert that the last two agree.

    |measured - theory| <= within × |theory|; gap = (measured - theory) / |theory|. A time, or what
    was computed from one, takes `within=None`: its gap is shown and not judged, since other
    programs share the machine. The learner's number is never asserted; how far it was off what was
    found is kept. Without `measured` theory has the last word; with `...` for `theory` the
    measurement has, and nothing is asserted. Raises ValueError for a `theory` or `within` that is
    not a finite number, AssertionError else.
    """
    if within is not None:
        _require_number("within", within, least=0)
    guess = yours or Prediction("")
    name, unit = label or guess.key or "value", unit or guess.unit
    found = {}
    if not isinstance(theory, EllipsisType) or measured is ...:
        _require_number("theory", theory)
        found["theory"] = plain(theory)
    if measured is not ...:
        found["measured"] = plain(measured)
        if not (is_number(found["measured"]) and math.isfinite(found["measured"])):
            raise AssertionError(f"{name}: measured must be a finite number, got {measured!r}")
    compared = Compared(name, unit, within, {column: float(found[column]) for column in found})
    _tell(compared, guess)
    if within is None or len(found) == 1:
        return
    if abs(found["measured"] - found["theory"]) > within * abs(found["theory"]):
        raise AssertionError(
            f"{name}: measured {in_words(found['measured'], unit)} against predicted "
            f"{in_words(found['theory'], unit)}, a gap of {percent(compared.gap)}, where at most "
            f"{100 * within:.3g} % is allowed"
        )


# What was compared before the learner had predicted, by key: shown again once the box is filled.
_waiting: dict[str, list[Callable[[], None]]] = {}


def _tell(found: Compared, guess: Prediction) -> None:
    """Show the comparison, and keep what was found for the learner's number."""
    yours, slot = _number_of(guess), Slot()
    _show_compared(found, guess, slot)
    if yours is None and guess.key and in_notebook():
        _waiting.setdefault(guess.key, []).append(lambda: _show_compared(found, guess, slot))


def _show_compared(found: Compared, guess: Prediction, slot: Slot) -> None:
    yours = _number_of(guess)
    if yours is not None and guess.key:
        progress.update(
            "predictions", guess.key, lambda kept: _close(kept, found.last, found.columns)
        )
    if not in_notebook():
        print(found.text(yours))
        return
    slot.show(found.card(yours, asked_for=bool(guess.key)), found.text(yours))


def _number_of(prediction: Prediction) -> float | None:
    """The learner's number: the one given, or the one committed for this key."""
    if prediction.yours is not None or not prediction.key:
        return prediction.yours
    yours: float | None = progress.read()["predictions"].get(prediction.key, {}).get("yours")
    return yours


def _ask(key: str, asked: dict[str, str]) -> None:
    """Ask for a number: by a box in a notebook."""
    unit, question = asked["unit"], asked["question"]
    if not in_notebook():
        print(question)
        print(f"  Write your number{f' of {unit}' if unit else ''} for None, then run this again.")
        return
    from course_lib.checking.widgets import PredictionBox

    slot = Slot()

    def commit(yours: float) -> None:
        _show_committed(asked, _recorded(key, asked, yours), None, slot)
        for show in _waiting.pop(key, []):
            show()

    slot.show(_asked(question), question)
    show_widget(PredictionBox(unit, commit))


def _recorded(key: str, asked: dict[str, str], given: float | None) -> dict[str, Any]:
    """The record of a prediction, after `given` is committed, if it is a number."""
    if given is None:
        record: dict[str, Any] = progress.read()["predictions"][key]
        return record
    number = float(given)
    return progress.update("predictions", key, lambda kept: _commit(kept, number, asked))


def _show_committed(
    asked: dict[str, str], record: dict[str, Any], given: float | None, slot: Slot
) -> None:
    first, unit, question = record["yours"], asked["unit"], asked["question"]
    at = progress.local(record["at"])
    change = None if given is None or first == given else float(given)
    text = f"{question}\n  Your prediction: {in_words(first, unit)}, committed {at}"
    if change is not None:
        change_text = f"The change to {in_words(change, unit)} is recorded as revised"
        text += f"\n  {change_text}; the first one counts."
    if not in_notebook():
        print(text)
        return
    slot.show(_committed(question, unit, first, at, change), text)


def _commit(record: dict[str, Any], yours: float, asked: dict[str, str]) -> None:
    if "yours" not in record:
        record.update(yours=yours, at=progress.now(), **asked)
        return
    revised = record.setdefault("revised", [])
    if yours != (revised[-1]["yours"] if revised else record["yours"]):
        revised.append({"yours": yours, "at": progress.now()})


def _close(record: dict[str, Any], found: float, values: dict[str, float]) -> None:
    for column in ("theory", "measured"):  # of an earlier run, which may have had others
        record.pop(column, None)
    record.update(found=found, **values)


def _require_number(name: str, value: object, least: float | None = None) -> None:
    if isinstance(value, str):
        sentence = f"{name} must be a number, got {value!r}: write only the number, no unit"
        raise ValueError(sentence)
    # Fractions and numpy's numbers are numbers, too.
    plain_value = float(value) if is_number(value) else value
    validation.number(name, plain_value, least=least, most=math.inf)
