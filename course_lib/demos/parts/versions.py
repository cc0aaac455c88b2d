"""Several versions of one technique beside one process: equal, as much sent, stored, how fast."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.demos.parts.device import device_name
from course_lib.demos.parts.training import Batch, OneProcess, Run, Training
from course_lib.measure.gradients import relative_difference
from course_lib.measure.wire import log_wire
from course_lib.theory.inputs.cluster import Cluster
from course_lib.theory.inputs.hardware import ACCELERATORS
from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.recipe import Recipe
from course_lib.theory.network.policy import CommunicationPolicy
from course_lib.theory.network.step_traffic import step_traffic

FP32 = Recipe(parameters="fp32", gradients="fp32", master_copy=False)  # what every demo trains in
Sent = dict[str, list[int]]  # by operation: [calls, bytes of the whole tensors]

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
    stored: dict[str, int] = field(default_factory=dict)
    predicted_stored: dict[str, int] = field(default_factory=dict)


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
        """What `rank` took part in, once `verify` has passed; `more` are the other fields."""
        where = (rank.world, rank.backend, device_name(rank.device), model)
        return cls(technique, *where, reference.losses, versions, **more).verify()

    def verify(self) -> Self:
        """Return itself; raises AssertionError where a version is not equal or not as predicted."""
        for version in self.versions:
            for number, gap in enumerate(loss_gaps(version.losses, self.losses_one_process)):
                if not gap <= self.loss_tolerance:
                    raise AssertionError(
                        f"{version.name}: the loss of update {number} differs from one process "
                        f"by {gap:.1e}, more than {self.loss_tolerance:.0e}"
                    )
            gap = version.gradient_difference
            if gap is not None and not gap <= self.gradient_tolerance:
                raise AssertionError(
                    f"{version.name}: the gradient differs from one process by {gap:.1e}, "
                    f"more than {self.gradient_tolerance:.0e}"
                )
            _same(f"{version.name}: sent", version.sent, version.predicted_sent)
            _same(f"{version.name}: stored", version.stored, version.predicted_stored)
        return self

    def report(self) -> str:
        """The findings: one block a version, one line a fact."""
        first, last = self.losses_one_process[0], self.losses_one_process[-1]
        lines = [
            f"{self.technique}: {self.ranks} ranks, {self.backend} on {self.device}, model "
            f"{self.model}, {len(self.losses_one_process)} updates, "
            f"one process: loss {first:.3f} -> {last:.3f}"
        ]
        for version in self.versions:
            lines += _block(version, self.losses_one_process)
        return "\n".join([*lines, *self.notes])


class Trainee(Protocol):
    """One version of a technique, on one rank."""

    name: str

    def backward(self, batch: Batch) -> Tensor:
        """Forward and backward passes of this rank's part of the whole batch.

        Returns this rank's share of the mean loss: the shares of all ranks add up to it.
        """

    def gradients(self) -> Mapping[str, Tensor]:
        """The whole gradient of every parameter, by its name in GPT; may call collectives."""

    def update(self) -> None:
        """One step of the optimizer, whatever it exchanges, and gradients set to None."""

    def stored(self) -> dict[str, int]:
        """Bytes of this rank's tensors by consumer, as `scratch.ledger` counts them."""


def follow(
    trainee: Trainee,
    training: Run,
    reference: OneProcess,
    predicted_sent: Sent | None = None,
    predicted_stored: dict[str, int] | None = None,
    axes: Mapping[str, str] | None = None,
) -> Version:
    """Train one version, all ranks together, and write down what it did.

    The gradient is compared at the first update; collectives are logged in the last one; both are
    left out of the time. `axes` (axis by the name of the process group) divides them by axis.
    """
    device = launch.init().device
    losses, seconds, gap = [], [], None
    for number, batch in enumerate(training.batches(device)):
        start = _now(device)
        with log_wire(enabled=number == training.steps - 1) as log:
            share = trainee.backward(batch)
            if number == 0:
                gap = gradient_gap(trainee.gradients(), reference.gradients)
            stored = trainee.stored() if number == training.steps - 1 else {}
            trainee.update()
        seconds.append(_now(device) - start)
        losses.append(_sum(share))
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


def _sum(share: Tensor) -> float:
    total = share.detach().double()
    dist.all_reduce(total)
    return float(total)


def loss_gaps(losses: list[float], reference: list[float]) -> list[float]:
    """|a - b| / |b| of each update."""
    return [abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)]


def gradient_gap(gradients: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """|g - g_one| / |g_one| over all parameters by name; KeyError where one is missing."""
    names = sorted(reference)
    ours = torch.cat([gradients[name].detach().cpu().flatten() for name in names])
    one = torch.cat([reference[name].detach().cpu().flatten() for name in names])
    return relative_difference(ours.double(), one.double())


def predicted_sent(
    training: Training,
    layout: Layout,
    *axes: str,
    habits: CommunicationPolicy | None = None,
    stage: int = 0,
    recipe: Recipe = FP32,
    by_axis: bool = False,
) -> Sent:
    """The theory's collectives of one update (of these axes; default: all), in a log's form.

    `stage` is the pipeline rank; `by_axis` divides them as `follow` with axes does.
    """
    cluster = Cluster(
        ACCELERATORS["H100-SXM"], gpus_per_node=layout.world
    )  # its rates don't matter
    traffic = step_traffic(
        training.shape(), recipe, layout, training.sequence, cluster, stage, habits=habits
    )
    totals: Sent = {}
    for entry in traffic.collectives:
        if not axes or entry.axis in axes:
            name = f"{entry.axis} {entry.operation}" if by_axis else entry.operation
            total = totals.setdefault(name, [0, 0])
            total[0] += entry.count
            total[1] += round(entry.count * entry.size_bytes)
    return totals


def _same(what: str, measured: Mapping, predicted: Mapping) -> None:
    for key in sorted({*measured, *predicted}):
        if predicted and measured.get(key) != predicted.get(key):
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
