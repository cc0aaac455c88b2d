"""Compares the versions of a technique with one process and with what the theory predicts."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.demos.shared.prediction import Sent, Stored
from course_lib.demos.shared.ranks import device_name
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import OneProcess, Run
from course_lib.measure.gradients import relative_difference
from course_lib.measure.wire import log_wire

# float32 sums in another order: |difference| / |value| is some 1e-7, and grows with each update.
GRADIENT_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Version:
    """What one version did, beside what was predicted for it; bytes and calls of one rank.

    `sent` is of one update. `gradient_difference` is |g - g_one| / |g_one| at the first update,
    over all parameters; None where a version shows only its losses.
    """

    name: str
    losses: list[float]
    gradient_difference: float | None
    seconds: float  # median of the updates after the first
    sent: Sent = field(default_factory=dict)
    predicted_sent: Sent = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    predicted_stored: Stored = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """All versions of a technique on the same training, and one process as the judge.

    The tolerances are relative, and those of fp32 unless a demo says otherwise.
    """

    technique: str
    ranks: int
    backend: str
    device: str
    model: str
    losses_one_process: list[float]
    versions: list[Version]
    notes: list[str] = field(default_factory=list)  # findings of this technique, one a line
    loss_tolerance: float = LOSS_TOLERANCE
    gradient_tolerance: float = GRADIENT_TOLERANCE

    @classmethod
    def verified(
        cls,
        technique: str,
        rank: launch.Rank,
        model: str,
        reference: OneProcess,
        versions: list[Version],
        **more: Any,
    ) -> Self:
        """The comparison that `rank` took part in, verified; `more` are the other fields."""
        where = (rank.world, rank.backend, device_name(rank.device), model)
        return cls(technique, *where, reference.losses, versions, **more).verify()

    def verify(self) -> Self:
        """Return itself; raises AssertionError where a version is not equal or not as predicted."""
        for version in self.versions:
            name, gap = version.name, version.gradient_difference
            check_losses(name, version.losses, self.losses_one_process, self.loss_tolerance)
            if gap is not None:
                check_gap(f"{name}: the gradient", gap, self.gradient_tolerance)
            if version.predicted_sent:
                check_equal(f"{name}: sent", version.sent, version.predicted_sent)
            if version.predicted_stored:
                check_equal(f"{name}: stored", version.stored, version.predicted_stored)
        return self

    def report(self) -> str:
        """The findings: a block for each version, a line for each fact."""
        first, last = self.losses_one_process[0], self.losses_one_process[-1]
        lines = [
            f"{self.technique}: {self.ranks} ranks, {self.backend} on {self.device}, model "
            f"{self.model}, {len(self.losses_one_process)} updates, "
            f"one process: loss {first:.3f} -> {last:.3f}"
        ]
        for version in self.versions:
            lines += _block(version, self.losses_one_process)
        return "\n".join([*lines, *self.notes])


def follow(
    trainee: Trainee,
    run: Run,
    reference: OneProcess,
    predicted_sent: Sent | None = None,
    predicted_stored: Stored | None = None,
    axes: Mapping[str, str] | None = None,
) -> Version:
    """Train one version, all ranks together, and write down what it did.

    The gradient is compared at the first update; collectives are logged in the last one; both are
    left out of the time. `axes` (axis by the name of the process group) divides them by axis.
    """
    device = launch.init().device
    losses: list[float] = []
    seconds: list[float] = []
    stored: Stored = {}
    gap = None
    for number, batch in enumerate(run.batches(device)):
        start, last = _now(device), number == run.steps - 1
        with log_wire(enabled=last) as log:
            share = trainee.backward(batch)
            if number == 0:
                gap = tensor_gap(trainee.gradients(), reference.gradients)
            if last:
                stored = trainee.stored()
            trainee.update()
        seconds.append(_now(device) - start)
        losses.append(sum_over_ranks(share))
        launch.report_step(number + 1, run.steps)
    return Version(
        name=trainee.name,
        losses=losses,
        gradient_difference=gap,
        seconds=statistics.median(seconds[1:-1]),
        sent=log.sent(axes),
        predicted_sent=predicted_sent or {},
        stored=stored,
        predicted_stored=predicted_stored or {},
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def sum_over_ranks(share: Tensor, group: dist.ProcessGroup | None = None) -> float:
    """The sum of all ranks' shares; all of them call this together."""
    total = share.detach().double()
    dist.all_reduce(total, group=group)
    return float(total)


def loss_gaps(losses: list[float], reference: list[float]) -> list[float]:
    """|a - b| / |b| of each update."""
    return [abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)]


def tensor_gap(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """|t - t_one| / |t_one| over all parameters by name; KeyError where one is missing."""
    names = sorted(reference)
    ours = torch.cat([tensors[name].detach().cpu().flatten() for name in names])
    one = torch.cat([reference[name].detach().cpu().flatten() for name in names])
    return relative_difference(ours.double(), one.double())


def check_losses(
    name: str, losses: list[float], reference: list[float], tolerance: float = LOSS_TOLERANCE
) -> None:
    """Raise AssertionError for the first update whose loss is not that of one process."""
    for number, gap in enumerate(loss_gaps(losses, reference)):
        check_gap(f"{name}: the loss of update {number}", gap, tolerance)


def check_gap(what: str, gap: float, tolerance: float) -> None:
    """Raise AssertionError unless a relative difference from one process is small enough."""
    if not gap <= tolerance:  # nan is not
        raise AssertionError(
            f"{what} differs from one process by {gap:.1e}, more than {tolerance:.0e}"
        )


def check_equal(what: str, measured: Mapping[str, object], predicted: Mapping[str, object]) -> None:
    """Raise AssertionError for the first entry that is not as predicted."""
    for key in sorted({*measured, *predicted}):
        if measured.get(key) != predicted.get(key):
            raise AssertionError(
                f"{what}: {key} is {measured.get(key)}, predicted {predicted.get(key)}"
            )


def _block(version: Version, reference: list[float]) -> list[str]:
    gap = max(loss_gaps(version.losses, reference))
    line = f"  {version.name}: {1000 * version.seconds:.1f} ms an update; loss off by {gap:.0e}"
    if version.gradient_difference is not None:
        line += f", gradient by {version.gradient_difference:.0e}"
    lines = [line]
    for operation, (calls, size) in version.sent.items():
        lines.append(
            f"    sent    {calls:>5} x {operation:<15}{size:>13,} B{_told(version, operation)}"
        )
    for what, size in version.stored.items():
        expected = version.predicted_stored.get(what)
        told = "" if expected is None else f"   predicted {expected:,}"
        lines.append(f"    stored  {what:<23}{size:>13,} B{told}")
    return lines


def _told(version: Version, operation: str) -> str:
    if operation not in version.predicted_sent:
        return ""
    calls, size = version.predicted_sent[operation]
    return f"   predicted {calls} x, {size:,}"
