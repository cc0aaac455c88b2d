"""What is said when a rank is killed, hangs, or calls another collective.

One rank of the launch is broken on purpose, in the way asked for, from one of its updates on.

The launch ends with one sentence that names the rank and the cause, and leaves no process behind.
Run it with `course demo faults --kind hang --timeout 3`; a mismatch is explained by
`TORCH_DISTRIBUTED_DEBUG=DETAIL course demo faults --kind shape`. With `--record here`, the ranks
leave what `course diagnose here` needs.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.demos.faults.kinds import (
    EVERYWHERE,
    KINDS,
    PARTNERS,
    NoMoreSamples,
    Update,
    healthy,
    model_of,
)
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.demos.shared.result import Result
from course_lib.validation import whole


@dataclass(frozen=True)
class Options(DemoOptions):
    """The options of this demo."""

    kind: str = option("none", ", ".join(KINDS), among=KINDS)
    rank: int = option(1, "the rank that is broken", least=0)
    steps: int = option(3, "updates", least=1)
    step: int = option(2, "the update from which on it is broken")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("step", self.step, most=self.steps)


def main(options: Options) -> Result:
    """Inject the fault on one rank; returns only for kinds in which no rank fails."""
    rank = launch.init()
    if options.rank >= rank.world and options.kind != "none":
        raise ValueError(
            f"rank must be below the number of ranks {rank.world}, got {options.rank}: "
            "ranks count from 0"
        )
    broken = options.kind in EVERYWHERE or rank.rank == options.rank
    group = None
    if options.kind == "subgroup":
        group = dist.new_group(sorted({options.rank, (options.rank + 1) % rank.world}))
    model = model_of(seed=0).to(rank.device)
    for step in range(1, options.steps + 1):
        ones, first = torch.ones(4, device=rank.device), step == options.step
        update = Update(rank.rank, rank.world, ones, group, model, first)
        faulty = broken and step >= options.step
        try:
            (KINDS if faulty else PARTNERS).get(options.kind, healthy)(update)
            if options.kind in PARTNERS:
                healthy(update)
        except NoMoreSamples:
            break
        launch.report_step(step, options.steps)
    total = int(update.ones[0])
    return Result(
        f"no rank failed: {rank.world} ranks added their ones up to {total}",
        ranks=rank.world,
        total=total,
    )
