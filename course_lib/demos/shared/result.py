"""The result of a demo: verified facts, the lines of its report, and named values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Fact:
    """A measurement and its prediction: equal, or within a relative `tolerance`.

    A mapping is compared entry by entry, and a list with a tolerance update by update. Without a
    prediction, `measured` is the relative difference itself. `beside`: the name of the reference.
    """

    name: str
    measured: Any
    predicted: Any = None
    unit: str = ""
    tolerance: float | None = None
    beside: str = "one process"

    def verify(self) -> None:
        """Raise AssertionError unless measurement and prediction agree."""
        for name, measured, predicted in self._entries():
            if self.tolerance is None:
                if measured != predicted:
                    values = f"{_text(measured)}, predicted {_text(predicted)}"
                    raise AssertionError(f"{name} is {values}")
            elif not (gap := _gap(measured, predicted)) <= self.tolerance:  # also for nan
                apart = f"{gap:.1e}, more than {self.tolerance:.0e}"
                raise AssertionError(f"{name} differs from {self.beside} by {apart}")

    def _entries(self) -> list[tuple[str, Any, Any]]:
        if isinstance(self.predicted, Mapping):
            keys = sorted({*self.measured, *self.predicted})
            both = ((self.measured.get(key), self.predicted.get(key)) for key in keys)
            return [(f"{self.name}: {key}", *pair) for key, pair in zip(keys, both, strict=True)]
        if self.tolerance is not None and isinstance(self.predicted, list):
            pairs = zip(self.measured, self.predicted, strict=True)
            return [(f"{self.name} of update {i}", *pair) for i, pair in enumerate(pairs)]
        return [(self.name, self.measured, self.predicted)]

    def __str__(self) -> str:
        line = f"{self.name}: {_text(self.measured)}{self.unit and ' ' + self.unit}"
        return line if self.predicted is None else f"{line}, predicted {_text(self.predicted)}"


class Result(SimpleNamespace):
    """`said`: the lines of the report, strings or Facts. `facts`: further facts to verify.

    Other values are attributes, for chapters, figures and JSON. A false fact raises
    AssertionError.
    """

    def __init__(self, *said: str | Fact, facts: Sequence[Fact] = (), **found: Any) -> None:
        super().__init__(**found, said=[*said], facts=[*facts])
        self.verify()

    def verify(self) -> None:
        """Raise AssertionError for the first fact that is false."""
        for fact in (*self.facts, *self.said):
            if isinstance(fact, Fact):
                fact.verify()

    def report(self) -> str:
        """The report, one entry of `said` per line."""
        return "\n".join(map(str, self.said))


def render(result: Any, as_json: bool) -> str:
    """The result of a demo as one line of JSON or as its report."""
    return json.dumps(result, default=vars) if as_json else str(result.report())


def loss_gaps(losses: Sequence[float], reference: Sequence[float]) -> list[float]:
    """|a - b| / |b| of each update."""
    return [_gap(a, b) for a, b in zip(losses, reference, strict=True)]


def _gap(measured: float, predicted: float | None) -> float:
    return measured if predicted is None else abs(measured - predicted) / abs(predicted)


def _text(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)
