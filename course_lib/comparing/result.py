"""What a comparison found: each tensor's verdict, and the sentence."""

from dataclasses import dataclass

from course_lib.theory.compute.rounding import ROUNDING_UP_TO, VERDICTS

_SHOWN = 6  # tensors in the table


@dataclass(frozen=True)
class Judged:
    """One tensor of both runs. `measured` and `typical` are relative to its largest number."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    terms: int
    read_as: str  # how the pieces of the ranks make the whole
    measured: float
    typical: float
    verdict: str
    looks_like: str = ""  # what the difference looks like, where it is more than rounding

    @property
    def title(self) -> str:
        """ "gradient of the output of blocks.1.norm2"."""
        if self.kind == "loss":
            return "loss"
        of = "" if self.kind == "weight" else "of "
        return f"{self.kind} {of}{self.name or 'the model'}"


@dataclass(frozen=True)
class Compared:
    """All tensors that both runs have, in the order in which they arose in the first."""

    first: str
    second: str
    tensors: tuple[Judged, ...]
    missing: tuple[str, ...]  # in one run only, or of another shape

    @property
    def verdict(self) -> str:
        """The worst verdict of a tensor."""
        return max((t.verdict for t in self.tensors), key=VERDICTS.index)

    @property
    def diverging(self) -> Judged | None:
        """The first tensor whose difference is not plainly rounding."""
        return next((tensor for tensor in self.tensors if tensor.verdict != VERDICTS[0]), None)

    @property
    def before(self) -> Judged | None:
        """The last tensor that is right."""
        first = self.diverging
        place = self.tensors.index(first) if first else 0
        return self.tensors[place - 1] if place else None

    def report(self) -> str:
        """The sentence, what is known about the first diverging tensor, and a table."""
        return "\n".join([self._sentence(), *self._about(), "", *self._table(), *self._missing()])

    def _sentence(self) -> str:
        count = len(self.tensors)
        if self.verdict == VERDICTS[0]:
            worst = max(self.tensors, key=lambda tensor: tensor.measured / tensor.typical)
            ratio = worst.measured / worst.typical
            how = f"within {ratio:.1g} times the typical rounding" if ratio else "to the last bit"
            left = f", {len(self.missing)} could not be compared" if self.missing else ""
            return f"Rounding: all {count} tensors agree {how}{left}.{self._hidden()}"
        assert self.diverging is not None
        where = self.diverging.title
        if self.verdict == VERDICTS[1]:
            return (
                f"Don't know: the {where} differs by somewhat more than rounding usually does. "
                "Record both runs with more digits, fp32 or fp64: rounding shrinks, a bug stays."
            )
        return f"More than rounding: the first tensor that differs is the {where}."

    def _hidden(self) -> str:
        """What so few digits cannot show."""
        coarse = [tensor for tensor in self.tensors if tensor.dtype not in ("fp32", "fp64")]
        if not coarse:
            return ""
        worst = max(coarse, key=lambda tensor: tensor.typical)
        least = ROUNDING_UP_TO * worst.typical
        return (
            f" In {worst.dtype} a bug hides that changes a tensor by less than {least:.0e} of its"
            " largest number: record both in fp32 to see it."
        )

    def _about(self) -> list[str]:
        tensor = self.diverging
        if tensor is None:
            return []
        shape = " x ".join(map(str, tensor.shape)) or "one number"
        sums = f" in sums of {tensor.terms} terms" if tensor.terms > 1 else ""
        lines = [
            f"  shape {shape}, {tensor.dtype}, {tensor.read_as}",
            f"  differs by {tensor.measured:.2g} of its largest number; rounding{sums} would "
            f"make about {tensor.typical:.1g}",
        ]
        if tensor.looks_like:
            lines.append(f"  {tensor.looks_like}")
        if self.before is not None:
            lines.append(f"  the last tensor that is right: {self.before.title}")
        return lines

    def _table(self) -> list[str]:
        """The tensors around the first diverging one, or the worst."""
        place = self.tensors.index(self.diverging) if self.diverging else 0
        start = max(0, min(place - 2, len(self.tensors) - _SHOWN))
        shown = self.tensors[start : start + _SHOWN]
        if self.diverging is None:
            shown = tuple(sorted(self.tensors, key=lambda t: -t.measured / t.typical)[:_SHOWN])
        width = max(len(tensor.title) for tensor in shown)
        head = f"{'tensor':<{width}}  differs by  rounding    ratio  verdict"
        return [head, *(_row(tensor, width) for tensor in shown)]

    def _missing(self) -> list[str]:
        more = len(self.missing) - _SHOWN
        rest = [f"and {more} more"] if more > 0 else []
        told = "; ".join([*self.missing[:_SHOWN], *rest])
        return ["", f"not compared: {told}"] if self.missing else []


def _row(tensor: Judged, width: int) -> str:
    ratio = tensor.measured / tensor.typical
    return (
        f"{tensor.title:<{width}}  {tensor.measured:>10.1e}  {tensor.typical:>8.0e}  "
        f"{ratio:>7.2g}  {tensor.verdict}"
    )
