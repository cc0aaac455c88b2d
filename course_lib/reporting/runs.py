"""The small run of the capstone: what one rank sent and stored, kept beside the prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from course_lib.checking import progress
from course_lib.checking.gaps import gap_of
from course_lib.demos.shared.comparison import (
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    Version,
)
from course_lib.demos.shared.result import Result, loss_gaps
from course_lib.demos.three_d import BUILT
from course_lib.reporting.keeping import keep
from course_lib.trace import Total


@dataclass(frozen=True)
class Row:
    """One thing of rank 0 that was predicted and counted; bytes, and calls where it was sent."""

    what: str
    predicted_bytes: int
    measured_bytes: int
    predicted_calls: int | None = None
    measured_calls: int | None = None

    @property
    def equal(self) -> bool:
        """Whether calls and bytes are the predicted ones."""
        return (self.predicted_bytes, self.predicted_calls) == (
            self.measured_bytes,
            self.measured_calls,
        )

    @property
    def gap(self) -> float:
        """(measured - predicted) / predicted, of the bytes."""
        return gap_of(self.predicted_bytes, self.measured_bytes)


@dataclass(frozen=True)
class KeptRun:
    """A run of the demo three_d; `at` is when. Gaps are relative, and those beside one process."""

    at: str
    ranks: int
    mesh: str
    model: str
    updates: int
    seconds: float
    loss_gap: float
    gradient_gap: float
    yours: list[str]
    courses: list[str]
    rows: list[Row]

    @property
    def bytes_equal(self) -> bool:
        """Whether all that was sent and stored is as predicted."""
        return all(row.equal for row in self.rows)

    @property
    def equal(self) -> bool:
        """Whether losses and gradients are those of one process, up to the rounding of fp32."""
        return self.loss_gap <= LOSS_TOLERANCE and self.gradient_gap <= GRADIENT_TOLERANCE

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self | None:
        """From the progress file; None where nothing was run, or the record is damaged."""
        try:
            return cls(**{**record, "rows": [Row(**row) for row in record["rows"]]})
        except (KeyError, TypeError):
            return None


def keep_run(result: Result) -> KeptRun:
    """Keep a run of the demo three_d for the report; the last one counts."""
    (version,) = result.versions
    kept = KeptRun(
        at=progress.now(),
        ranks=result.ranks,
        mesh=_mesh(result.places),
        model=result.model,
        updates=len(version.losses),
        seconds=version.seconds,
        loss_gap=max(loss_gaps(version.losses, result.losses_one_process)),
        gradient_gap=version.gradient_difference or 0.0,
        yours=result.yours,
        courses=[name for name in BUILT if name not in result.yours],
        rows=[*_sent(version), *_stored(version)],
    )
    keep("run", kept)
    return kept


def _mesh(places: Sequence[Mapping[str, int]]) -> str:
    """The degrees of a mesh: "dp 2 × tp 2 × pp 2"."""
    degrees = {axis: 1 + max(place[axis] for place in places) for axis in ("dp", "tp", "pp")}
    return " × ".join(f"{axis} {degree}" for axis, degree in degrees.items())


def _sent(version: Version) -> list[Row]:
    """What the axes of the mesh sent in one update."""
    nothing = Total(0, 0)
    rows = []
    for what in sorted({*version.sent, *version.predicted_sent}):
        told = version.predicted_sent.get(what, nothing)
        found = version.sent.get(what, nothing)
        rows.append(Row(what, told.size_bytes, found.size_bytes, told.calls, found.calls))
    return rows


def _stored(version: Version) -> list[Row]:
    """What the rank keeps from one update to the next."""
    told = version.predicted_stored
    return [
        Row(f"stored: {what}", told.get(what, 0), version.stored[what]) for what in version.stored
    ]
