"""What a demo found: facts beside what was predicted, the lines of its report, and all the rest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Fact:
    """Something measured beside its prediction: equal, or `tolerance` (relative) apart.

    A mapping is compared entry by entry, and a list with a tolerance update by update. Without a
    prediction `measured` is the relative difference itself. `beside`: what it is compared with.
    """

    name: str
    measured: Any
    predicted: Any = None
    unit: str = ""
    tolerance: float | None = None
    beside: str = "one process"

    def verify(self) -> None:
        """Raise AssertionError unless it is so."""
        for name, measured, predicted in self._entries():
            if self.tolerance is None:
                if measured != predicted:
                    told = f"{_told(measured)}, predicted {_told(predicted)}"
                    raise AssertionError(f"{name} is {told}")
            elif not (gap := _gap(measured, predicted)) <= self.tolerance:  # nan is not
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
        line = f"{self.name}: {_told(self.measured)}{self.unit and ' ' + self.unit}"
        return line if self.predicted is None else f"{line}, predicted {_told(self.predicted)}"


class Result(SimpleNamespace):
    """`said`: the lines of the report, of which a Fact is one. `facts`: what is proven besides.

    All else has a name, for chapters, figures and JSON. A fact that is false ends the demo by an
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
        """What was said, one a line."""
        return "\n".join(map(str, self.said))


def render(result: Any, as_json: bool) -> str:
    """The result of a demo as one line of JSON or as its report."""
    return json.dumps(result, default=vars) if as_json else str(result.report())


def loss_gaps(losses: Sequence[float], reference: Sequence[float]) -> list[float]:
    """|a - b| / |b| of each update."""
    return [_gap(a, b) for a, b in zip(losses, reference, strict=True)]


def _gap(measured: float, predicted: float | None) -> float:
    return measured if predicted is None else abs(measured - predicted) / abs(predicted)


def _told(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)
