"""Walks through two runs and judges each tensor."""

from pathlib import Path

from torch import Tensor

from course_lib.comparing.entry import Entry, read
from course_lib.comparing.mistakes import explained, wrong_ranks
from course_lib.comparing.readings import Reading, relative, right_readings
from course_lib.comparing.result import Compared, Judged
from course_lib.problem import Problem
from course_lib.theory.compute.rounding import (
    ROUNDING_UP_TO,
    VERDICTS,
    grown,
    typical_sum_error,
    unit_roundoff,
    verdict,
)

NAMES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
Run = dict[tuple[str, str], Entry]  # of one rank


def compare(first: Path | str, second: Path | str) -> Compared:
    """Compare two folders of `record`. The first is one process: its tensors are whole.

    Raises Problem for a folder without a record, a first run of several ranks, and two runs that
    have no tensor in common.
    """
    reference, others = read(Path(first)), read(Path(second))
    if len(reference) > 1:
        raise Problem(
            f"{first} is a run on {len(reference)} ranks: give the one of a single process first"
        )
    judged: list[Judged] = []
    missing: list[str] = []
    expected = _Expected()
    own_rows = _own_rows(reference[0], others)
    for key, entry in reference[0].items():
        found = [rank[key] for rank in others if key in rank]
        pieces = [other.value for other in found]
        readings = list(right_readings(entry.kind, pieces, entry.value, own_rows)) if pieces else []
        if readings and all(other.times == entry.times for other in found):
            bias = reference[0].get(("weight", f"{entry.name}.bias"))
            judged.append(_judge(entry, pieces, readings, expected, bias))
        else:
            why = f"of other shapes in {second}" if pieces else f"only in {first}"
            if readings:
                other = next(other for other in found if other.times != entry.times)
                why = f"{entry.times} × in {first}, {other.times} × in {second}"
            missing.append(f"{' '.join(key).strip()} ({why})")
    known = set().union(*others)
    missing += [f"{' '.join(key)} (only in {second})" for key in sorted(known - {*reference[0]})]
    if not judged:
        raise Problem(f"{first} and {second} have no tensor in common: record the same model twice")
    return Compared(str(first), str(second), tuple(judged), tuple(missing))


class _Expected:
    """The typical size of rounding, which does not shrink on the way."""

    def __init__(self) -> None:
        self.dtype, self.error, self.roundings = "fp64", 0.0, 0

    def of(self, entry: Entry, pieces: list[Tensor]) -> float:
        """For a tensor that comes after all those asked for so far.

        What was rounded in bf16 stays as coarse in fp32; an addition hands on its inputs' errors.
        """
        named = [NAMES.get(str(t.dtype).removeprefix("torch."), "fp32") for t in pieces]
        self.dtype = max([self.dtype, *named], key=unit_roundoff)
        if entry.kind == "weight":
            return unit_roundoff(self.dtype)
        self.roundings += 1
        self.error = max(self.error, typical_sum_error(entry.terms, self.dtype))
        return grown(self.error, self.roundings)


def _own_rows(reference: Run, others: list[Run]) -> bool:
    """Whether each rank has samples of its own: its first output has fewer rows."""
    for key, entry in reference.items():
        if entry.kind == "output" and entry.value.ndim > 1 and key in others[0]:
            piece = others[0][key].value
            if piece.ndim == entry.value.ndim and piece.shape[0] < entry.value.shape[0]:
                return piece.shape[1:] == entry.value.shape[1:]
    return False


def _judge(
    entry: Entry,
    pieces: list[Tensor],
    readings: list[Reading],
    expected: _Expected,
    bias: Entry | None,
) -> Judged:
    best = min(readings, key=lambda reading: relative(reading.whole, entry.value))
    measured = relative(best.whole, entry.value)
    typical = expected.of(entry, [entry.value, *pieces])
    said, looks = verdict(measured, typical), ""
    if said != VERDICTS[0]:
        # What makes it agree, and much better than it does, is no accident.
        limit = min(ROUNDING_UP_TO * typical, measured / ROUNDING_UP_TO)
        added = bias.value if bias and entry.kind == "output" else None
        looks = explained(pieces, entry.value, limit, added)
        said = VERDICTS[2] if looks else said
        looks = looks or _whose(pieces, entry.value, ROUNDING_UP_TO * typical)
    return Judged(
        kind=entry.kind,
        name=entry.name,
        shape=tuple(entry.value.shape),
        dtype=expected.dtype,
        terms=entry.terms,
        read_as=best.words,
        measured=measured,
        typical=typical,
        verdict=said,
        looks_like=looks,
    )


def _whose(pieces: list[Tensor], expected: Tensor, limit: float) -> str:
    """Which ranks have it wrong; "" where all have."""
    wrong = wrong_ranks(pieces, expected, limit)
    if len(wrong) < len(pieces):
        ranks = ", ".join(map(str, wrong))
        return f"only the part of rank{'s' if len(wrong) > 1 else ''} {ranks} is wrong"
    if all(piece.shape == expected.shape for piece in pieces) and any(
        not relative(piece, pieces[0]) <= limit for piece in pieces
    ):
        return "the ranks do not agree with each other, and should"
    return ""
