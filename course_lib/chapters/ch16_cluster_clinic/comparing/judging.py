"""The comparison of two runs: each tensor's verdict, and the report."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from course_lib.chapters.ch16_cluster_clinic.comparing.readings import (
    Reading,
    explained,
    relative,
    right_readings,
    wrong_ranks,
)
from course_lib.chapters.ch16_cluster_clinic.comparing.recording import Entry, read
from course_lib.problem import Problem
from course_lib.theory.compute.rounding import (
    ROUNDING_UP_TO,
    VERDICTS,
    grown,
    typical_sum_error,
    unit_roundoff,
    verdict,
)

_SHOWN = 6  # tensors in the table


@dataclass(frozen=True)
class Judged:
    """One tensor of both runs; `measured` and `typical` are relative to its largest value."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    terms: int
    read_as: str  # how the ranks' pieces were combined into the whole tensor
    measured: float
    typical: float
    verdict: str
    looks_like: str = ""  # the likely mistake, if the difference is more than rounding

    @property
    def ratio(self) -> float:
        """The measured difference over the typical rounding error."""
        return self.measured / self.typical

    @property
    def title(self) -> str:
        """Kind and name in words, such as "gradient of the output of blocks.1.norm2"."""
        if self.kind == "loss":
            return "loss"
        of = "" if self.kind == "weight" else "of "
        return f"{self.kind} {of}{self.name or 'the model'}"


@dataclass(frozen=True)
class Compared:
    """All tensors that both runs have, in the order in which the first run computed them."""

    first: str
    second: str
    tensors: tuple[Judged, ...]
    missing: tuple[str, ...]  # in one run only, or of another shape

    @property
    def verdict(self) -> str:
        """The worst verdict among all tensors."""
        return max((t.verdict for t in self.tensors), key=VERDICTS.index)

    @property
    def diverging(self) -> Judged | None:
        """The first tensor whose verdict is not "rounding"; None if there is none."""
        return next((tensor for tensor in self.tensors if tensor.verdict != VERDICTS[0]), None)

    @property
    def before(self) -> Judged | None:
        """The last tensor before the first diverging one; None if there is none."""
        first = self.diverging
        index = self.tensors.index(first) if first else 0
        return self.tensors[index - 1] if index else None

    def report(self) -> str:
        """The summary sentence, details of the first diverging tensor, and a table."""
        lines = [self._sentence(), *self._about(), "", *self._table()]
        if self.missing:
            more = len(self.missing) - _SHOWN
            rest = [f"and {more} more"] if more > 0 else []
            lines += ["", f"not compared: {'; '.join([*self.missing[:_SHOWN], *rest])}"]
        return "\n".join(lines)

    def _sentence(self) -> str:
        first = self.diverging
        if first is not None and self.verdict == VERDICTS[1]:
            return (
                f"Don't know: the {first.title} differs by somewhat more than rounding usually "
                "does. Record both runs with more digits, fp32 or fp64: rounding shrinks, a bug "
                "stays."
            )
        if first is not None:
            return f"More than rounding: the first tensor that differs is the {first.title}."
        ratio = max(tensor.ratio for tensor in self.tensors)
        how = f"within {ratio:.1g} times the typical rounding" if ratio else "to the last bit"
        left = f", {len(self.missing)} could not be compared" if self.missing else ""
        hidden = ""
        if coarse := [tensor for tensor in self.tensors if tensor.dtype not in ("fp32", "fp64")]:
            worst = max(coarse, key=lambda tensor: tensor.typical)
            hidden = (
                f" In {worst.dtype} a bug hides that changes a tensor by less than "
                f"{ROUNDING_UP_TO * worst.typical:.0e} of its largest number: record both in fp32 "
                "to see it."
            )
        return f"Rounding: all {len(self.tensors)} tensors agree {how}{left}.{hidden}"

    def _about(self) -> Iterator[str]:
        """Lines with details of the first diverging tensor."""
        tensor = self.diverging
        if tensor is None:
            return
        shape = " x ".join(map(str, tensor.shape)) or "one number"
        sums = f" in sums of {tensor.terms} terms" if tensor.terms > 1 else ""
        yield f"  shape {shape}, {tensor.dtype}, {tensor.read_as}"
        yield (
            f"  differs by {tensor.measured:.2g} of its largest number; rounding{sums} would "
            f"make about {tensor.typical:.1g}"
        )
        if tensor.looks_like:
            yield f"  {tensor.looks_like}"
        if self.before is not None:
            yield f"  the last tensor that is right: {self.before.title}"

    def _table(self) -> Iterator[str]:
        """A table of the tensors around the first diverging one, or of those with most error."""
        if self.diverging is None:
            shown = tuple(sorted(self.tensors, key=lambda tensor: -tensor.ratio)[:_SHOWN])
        else:
            index = self.tensors.index(self.diverging)
            start = max(0, min(index - 2, len(self.tensors) - _SHOWN))
            shown = self.tensors[start : start + _SHOWN]
        width = max(len(tensor.title) for tensor in shown)
        yield f"{'tensor':<{width}}  differs by  rounding    ratio  verdict"
        for one in shown:
            yield (
                f"{one.title:<{width}}  {one.measured:>10.1e}  {one.typical:>8.0e}  "
                f"{one.ratio:>7.2g}  {one.verdict}"
            )


NAMES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
Run = dict[tuple[str, str], Entry]  # the entries of one rank


def compare(first: Path | str, second: Path | str) -> Compared:
    """Compare two folders of `record`; the first must be a run of one process, the reference.

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
        matching = [rank[key] for rank in others if key in rank]
        pieces = [other.value for other in matching]
        readings = list(right_readings(entry.kind, pieces, entry.value, own_rows)) if pieces else []
        times = next((other.times for other in matching if other.times != entry.times), None)
        if readings and times is None:
            bias = reference[0].get(("weight", f"{entry.name}.bias"))
            judged.append(_judge(entry, pieces, readings, expected, bias))
            continue
        why = f"only in {first}"
        if readings:
            why = f"{entry.times} × in {first}, {times} × in {second}"
        elif pieces:
            why = f"of other shapes in {second}"
        missing.append(f"{' '.join(key).strip()} ({why})")
    known = set().union(*others)
    missing += [f"{' '.join(key)} (only in {second})" for key in sorted(known - {*reference[0]})]
    if not judged:
        raise Problem(f"{first} and {second} have no tensor in common: record the same model twice")
    return Compared(str(first), str(second), tuple(judged), tuple(missing))


class _Expected:
    """The typical rounding error, which never shrinks from one tensor to the next."""

    def __init__(self) -> None:
        self.dtype, self.error, self.roundings = "fp64", 0.0, 0

    def of(self, entry: Entry, pieces: list[Tensor]) -> float:
        """The typical relative error of `entry`; call it in the order of computation.

        A value rounded in bf16 stays as coarse in fp32, and sums inherit their inputs' errors.
        """
        named = [NAMES.get(str(t.dtype).removeprefix("torch."), "fp32") for t in pieces]
        self.dtype = max([self.dtype, *named], key=unit_roundoff)
        if entry.kind == "weight":
            return unit_roundoff(self.dtype)
        self.roundings += 1
        self.error = max(self.error, typical_sum_error(entry.terms, self.dtype))
        return grown(self.error, self.roundings)


def _own_rows(reference: Run, others: list[Run]) -> bool:
    """Whether each rank has its own samples: its first output has fewer rows."""
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
        # A known mistake counts only if undoing it makes the tensors agree, and much better.
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
    """A sentence on which ranks are wrong, or on ranks that disagree; else ""."""
    bad = wrong_ranks(pieces, expected, limit)
    if len(bad) < len(pieces):
        ranks = ", ".join(map(str, bad))
        return f"only the part of rank{'s' if len(bad) > 1 else ''} {ranks} is wrong"
    if all(piece.shape == expected.shape for piece in pieces) and any(
        not relative(piece, pieces[0]) <= limit for piece in pieces
    ):
        return "the ranks do not agree with each other, and should"
    return ""
