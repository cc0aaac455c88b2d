"""Compares the versions of a technique with one process and with what the theory predicts."""

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

    def facts(self, one: list[float], loss: float, gradient: float) -> list[Fact]:
        """What must be true; `one`: the losses of one process, then both tolerances."""
        found = [Fact(f"{self.name}: the loss", self.losses, one, tolerance=loss)]
        if self.gradient_difference is not None:
            gap = self.gradient_difference
            found.append(Fact(f"{self.name}: the gradient", gap, tolerance=gradient))
        if self.predicted_sent:
            found.append(Fact(f"{self.name}: sent", self.sent, self.predicted_sent))
        if self.predicted_stored:
            found.append(Fact(f"{self.name}: stored", self.stored, self.predicted_stored))
        return found

    def lines(self, one: list[float]) -> list[str]:
        """The version in a report: its time and its gaps, and a line for all that is counted."""
        gap = max(loss_gaps(self.losses, one))
        line = f"  {self.name}: {1000 * self.seconds:.1f} ms an update; loss off by {gap:.0e}"
        if self.gradient_difference is not None:
            line += f", gradient by {self.gradient_difference:.0e}"
        lines = [line]
        for operation, (calls, size) in self.sent.items():
            told = ""
            if operation in self.predicted_sent:
                told = "   predicted {} x, {:,}".format(*self.predicted_sent[operation])
            lines.append(f"    sent    {calls:>5} x {operation:<15}{size:>13,} B{told}")
        for what, size in self.stored.items():
            expected = self.predicted_stored.get(what)
            told = "" if expected is None else f"   predicted {expected:,}"
            lines.append(f"    stored  {what:<23}{size:>13,} B{told}")
        return lines


class Comparison:
    """The versions of a technique beside one process, which trains first and is the judge.

    `run` is what all of them train; `settings` are those of `one_process`.
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
        """Train one version, all ranks together, and write down what it did.

        The gradient is compared at the first update; collectives are logged in the last one; both
        are left out of the time. `told`: what the last update should send, as a trace. `axes` (axis
        by the name of the process group) divides both by axis.
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
        """A block for each version, then `notes`: findings of this technique, one a line.

        `model`: how it is called, if not as the run calls it. `kind`: of the result.
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
    """The sum of all ranks' shares; all of them call this together."""
    total = share.detach().double()
    dist.all_reduce(total, group=group)
    return float(total)


def tensor_gap(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """|t - t_one| / |t_one| over all parameters by name; KeyError where one is missing."""
    names = sorted(reference)
    ours = torch.cat([tensors[name].detach().cpu().flatten() for name in names])
    one = torch.cat([reference[name].detach().cpu().flatten() for name in names])
    return relative_difference(ours.double(), one.double())
