"""Compares the versions of a technique with one process and with the theory's predictions."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.demos.shared.prediction import BY_AXIS, Sent, Stored
from course_lib.demos.shared.ranks import device_name
from course_lib.demos.shared.result import Fact, Result, loss_gaps
from course_lib.demos.shared.trainee import Trainee
from course_lib.demos.shared.training import Run, one_process
from course_lib.measure.gradients import relative_difference
from course_lib.measure.wire import log_wire
from course_lib.trace import Trace

# float32 sums in a different order: |difference| / |value| is about 1e-7, growing with each update.
GRADIENT_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Version:
    """Measurements and predictions of one version; bytes and calls of one rank.

    `sent` covers one update. `gradient_difference` is |g - g_one| / |g_one| at the first update,
    over all parameters; None for a version that only reports losses.
    """

    name: str
    losses: list[float]
    gradient_difference: float | None
    seconds: float  # median of the updates after the first
    sent: Sent = field(default_factory=dict)
    predicted_sent: Sent = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    predicted_stored: Stored = field(default_factory=dict)

    def facts(self, one: list[float], loss: float, gradient: float) -> list[Fact]:
        """Facts to verify; `one`: losses of one process; `loss`, `gradient`: tolerances."""
        facts = [Fact(f"{self.name}: the loss", self.losses, one, tolerance=loss)]
        if self.gradient_difference is not None:
            gap = self.gradient_difference
            facts.append(Fact(f"{self.name}: the gradient", gap, tolerance=gradient))
        if self.predicted_sent:
            facts.append(Fact(f"{self.name}: sent", self.sent, self.predicted_sent))
        if self.predicted_stored:
            facts.append(Fact(f"{self.name}: stored", self.stored, self.predicted_stored))
        return facts

    def lines(self, one: list[float]) -> list[str]:
        """Report lines: time and gaps, then one line for each count."""
        gap = max(loss_gaps(self.losses, one))
        line = f"  {self.name}: {1000 * self.seconds:.1f} ms an update; loss off by {gap:.0e}"
        if self.gradient_difference is not None:
            line += f", gradient by {self.gradient_difference:.0e}"
        lines = [line]
        for operation, (calls, size) in self.sent.items():
            prediction = ""
            if operation in self.predicted_sent:
                prediction = "   predicted {} x, {:,}".format(*self.predicted_sent[operation])
            lines.append(f"    sent    {calls:>5} x {operation:<15}{size:>13,} B{prediction}")
        for what, size in self.stored.items():
            expected = self.predicted_stored.get(what)
            prediction = "" if expected is None else f"   predicted {expected:,}"
            lines.append(f"    stored  {what:<23}{size:>13,} B{prediction}")
        return lines


class Comparison:
    """Trains one process as the reference, then compares each version of a technique with it.

    `run` is the training run of all versions; `settings` are passed to `one_process`.
    """

    def __init__(self, run: Run, **settings: Any) -> None:
        self.run, self.rank = run, launch.init()
        self.one_process = one_process(run, self.rank.device, **settings)
        self.versions: list[Version] = []

    def follow(
        self,
        trainee: Trainee,
        told: Trace | None = None,
        predicted_stored: Stored | None = None,
        axes: Mapping[str, str] | None = None,
    ) -> Version:
        """Train one version, on all ranks together, and record its measurements.

        The gradient is compared at the first update, and collectives are logged in the last one;
        neither is timed. `told`: the predicted calls of the last update. `axes` ({group name:
        axis}) splits both logs by axis.
        """
        device, steps = self.rank.device, self.run.steps
        losses: list[float] = []
        seconds: list[float] = []
        stored: Stored = {}
        gap = None
        for number, batch in enumerate(self.run.batches(device)):
            start, last = _now(device), number == steps - 1
            with log_wire(enabled=last) as log:
                share = trainee.backward(batch)
                if number == 0:
                    gap = tensor_gap(trainee.gradients(), self.one_process.gradients)
                if last:
                    stored = trainee.stored()
                trainee.update()
            seconds.append(_now(device) - start)
            losses.append(sum_over_ranks(share))
            launch.report_step(number + 1, steps)
        version = Version(
            name=trainee.name,
            losses=losses,
            gradient_difference=gap,
            seconds=statistics.median(seconds[1:-1]),
            sent=log.sent(axes),
            predicted_sent=told.sent(axes=axes and BY_AXIS) if told else {},
            stored=stored,
            predicted_stored=predicted_stored or {},
        )
        self.versions.append(version)
        return version

    def result(
        self,
        technique: str,
        *,
        model: str = "",
        notes: Sequence[str] = (),
        facts: Sequence[Fact] = (),
        tolerances: tuple[float, float] = (LOSS_TOLERANCE, GRADIENT_TOLERANCE),
        kind: type[Result] = Result,
        **found: Any,
    ) -> Result:
        """The result: a block of lines for each version, then `notes`, one per line.

        `model`: the displayed name, by default the run's. `kind`: the class of the result.
        """
        one, model = self.one_process.losses, model or self.run.model
        rank, device = self.rank, device_name(self.rank.device)
        return kind(
            f"{technique}: {rank.world} ranks, {rank.backend} on {device}, model {model}, "
            f"{len(one)} updates, one process: loss {one[0]:.3f} -> {one[-1]:.3f}",
            *(line for version in self.versions for line in version.lines(one)),
            *notes,
            facts=[*(it for v in self.versions for it in v.facts(one, *tolerances)), *facts],
            technique=technique,
            ranks=rank.world,
            backend=rank.backend,
            device=device,
            model=model,
            losses_one_process=one,
            versions=self.versions,
            notes=[*notes],
            gradient_tolerance=tolerances[1],
            **found,
        )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def sum_over_ranks(share: Tensor, group: dist.ProcessGroup | None = None) -> float:
    """The sum of all ranks' shares; a collective call."""
    total = share.detach().double()
    dist.all_reduce(total, group=group)
    return float(total)


def tensor_gap(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """|t - t_one| / |t_one| over all parameters, by name; KeyError if one is missing."""
    names = sorted(reference)
    ours = torch.cat([tensors[name].detach().cpu().flatten() for name in names])
    one = torch.cat([reference[name].detach().cpu().flatten() for name in names])
    return relative_difference(ours.double(), one.double())
