"""A rehearsal: run torch's own parallel code on one rank of many, without the other ranks.

    result = rehearse(Job(shape, recipe, Layout(dp=128, tp=8, zero_stage=3)), rank=1023)
    print(result.report())

`program` runs one update of a transformer of any size with `fully_shard` and `parallelize_module`,
in a world in which only one rank exists. This module compares the bytes that the rank stored and
sent with the theory, and lists the explained and the unexplained differences.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from course_lib.chapters.ch15_launchers_and_recovery.rehearsal import expected
from course_lib.chapters.ch15_launchers_and_recovery.rehearsal.expected import Difference
from course_lib.chapters.ch15_launchers_and_recovery.rehearsal.program import (
    Observed,
    check,
    fake_world,
    one_update,
)
from course_lib.theory.inputs.job import Job
from course_lib.trace import Total
from course_lib.validation import whole


@dataclass(frozen=True)
class Line:
    """One quantity of a rank: predicted, rehearsed, and the known reasons why they differ.

    Stored quantities have bytes and 0 calls.
    """

    what: str
    theory: Total
    rehearsed: Total
    differences: tuple[Difference, ...] = ()

    @property
    def difference(self) -> Total:
        """Calls and bytes of the rehearsal minus those of the theory."""
        calls, size_bytes = self.theory
        return Total(self.rehearsed.calls - calls, self.rehearsed.size_bytes - size_bytes)

    @property
    def unexplained(self) -> Total:
        """The part of `difference` that `differences` do not account for."""
        calls = sum(difference.calls for difference in self.differences)
        size_bytes = sum(difference.size_bytes for difference in self.differences)
        return Total(self.difference.calls - calls, self.difference.size_bytes - size_bytes)

    def rows(self) -> Iterator[str]:
        """Yield the table rows of the quantity, followed by one row per reason it differs."""
        if self.theory.calls or self.rehearsed.calls:
            numbers = (self.theory.calls, self.rehearsed.calls, self.difference.calls)
            yield _row(f"{self.what}, calls", *numbers)
        sizes = (self.theory.size_bytes, self.rehearsed.size_bytes, self.difference.size_bytes)
        yield _row(f"{self.what}, bytes", *sizes)
        for difference in self.differences:
            calls = f" in {difference.calls:,} calls" if difference.calls else ""
            yield f"    {difference.size_bytes:+,}{calls}: {difference.reason}"
        if self.unexplained != (0, 0):
            calls = f" and {self.unexplained.calls:+,} calls" if self.unexplained.calls else ""
            yield f"    {self.unexplained.size_bytes:+,}{calls}: NOT EXPLAINED"

    def data(self) -> dict[str, Any]:
        """The line as a dict that can be written as JSON."""
        return {
            "what": self.what,
            "theory": self.theory._asdict(),
            "rehearsed": self.rehearsed._asdict(),
            "differences": [vars(difference) for difference in self.differences],
            "unexplained": self.unexplained._asdict(),
        }


@dataclass(frozen=True)
class Rehearsal:
    """What one rank stores and sends in an update, compared with the theory."""

    job: Job
    rank: int
    lines: tuple[Line, ...]
    seconds: float = 0.0

    @property
    def explained(self) -> bool:
        """Whether every byte and call is predicted by the theory or by a known difference."""
        return all(line.unexplained == (0, 0) for line in self.lines)

    def line(self, what: str) -> Line:
        """The line of one quantity, such as "weights" or "dp all-gather"."""
        return next(line for line in self.lines if line.what == what)

    def verify(self) -> Self:
        """Return self; raises AssertionError if any byte or call is unexplained."""
        if not self.explained:
            raise AssertionError(self.report())
        return self

    @property
    def stored_bytes(self) -> int:
        """Bytes of weights, gradients and moments that the rank stores after the update."""
        kept = ("weights", "gradients", "moments")
        return sum(self.line(what).rehearsed.size_bytes for what in kept)

    def report(self) -> str:
        """A text table of the theory, the rehearsal, and the reason for each difference."""
        head = f"{'':<27}{'theory':>19}{'rehearsed':>19}{'difference':>19}"
        rows = [row for line in self.lines for row in line.rows()]
        end = "every byte and every call is the theory's, or has a name"
        if not self.explained:
            end = "NOT EXPLAINED: see above"
        return "\n".join([self._title(), head, *rows, end])

    def data(self) -> dict[str, Any]:
        """The rehearsal as a dict that can be written as JSON."""
        lines = [line.data() for line in self.lines]
        return {"lines": lines, "explained": self.explained, "seconds": self.seconds}

    def _title(self) -> str:
        layout, recipe = self.job.layout, self.job.recipe
        dp_rank, tp_rank = divmod(self.rank, layout.tp)
        axes = [f"dp {dp_rank} of {layout.dp}", f"tp {tp_rank} of {layout.tp}"]
        return (
            f"rank {self.rank} of {layout.world:,} ({', '.join(axes)}): {recipe.parameters} in "
            f"{layout.shard_ranks} shards, computed in {recipe.compute or recipe.parameters}; "
            f"rehearsed in {self.seconds:.1f} s"
        )


def compared(job: Job, rank: int, observed: Observed, seconds: float = 0.0) -> Rehearsal:
    """Compare what a rank stored and sent with the theory, including the known differences."""
    theory = {what: Total(0, size) for what, size in expected.stored(job).items()}
    theory |= expected.sent(job)
    actual = {what: Total(0, size) for what, size in observed.stored.items()} | observed.sent
    named, nothing = expected.differences(job, rank), Total(0, 0)
    lines = [
        Line(what, theory.get(what, nothing), actual.get(what, nothing), tuple(named.get(what, ())))
        for what in dict.fromkeys([*theory, *actual])
    ]
    return Rehearsal(job, rank, tuple(lines), seconds)


def _row(what: str, theory: int, rehearsed: int, difference: int) -> str:
    change = f"{difference:+,}" if difference else "0"
    return f"{what:<27}{theory:>19,}{rehearsed:>19,}{change:>19}"


def rehearse(job: Job, rank: int = 0) -> Rehearsal:
    """Run one update of rank `rank` of `job` with torch's own code, without the other ranks.

    Collectives return at once, and tensors have sizes but no memory, so neither GPUs nor memory for
    the model are needed. Every byte that the rank stores or sends is counted and compared with the
    theory, which includes the gathered inputs that DTensor keeps (`Layout.keep_gathered`).

    It covers `fully_shard` of each layer and of the root, over dp or over `shard_group`;
    `parallelize_module` over tp, with or without sequence parallelism; the loss over a sharded
    vocabulary; AdamW or SGD. It does not cover activations, the global gradient norm, or time.
    Raises ValueError for a job that this code cannot run, RuntimeError inside a process group.
    """
    whole("rank", rank, least=0, most=job.layout.world - 1)
    check(job)
    job = replace(job, layout=replace(job.layout, keep_gathered=True))
    start_s = time.perf_counter()
    with fake_world(rank, job.layout.world) as tensors:
        observed = one_update(job, tensors)
    return compared(job, rank, observed, time.perf_counter() - start_s)
