"""What is said when a rank is killed, hangs, or calls another collective.

One rank of the launch is broken on purpose, in the way asked for.

The launch ends with one sentence that names the rank and the cause, and leaves no process behind.
Run it with `course demo faults --kind hang --timeout 3`; a mismatch is explained by
`TORCH_DISTRIBUTED_DEBUG=DETAIL course demo faults --kind shape`.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib import launch
from course_lib.demos.shared.options import DemoOptions, option
from course_lib.validation import choice, whole

HUGE = 10**15  # elements: no machine has 4 PB


@dataclass(frozen=True)
class Options(DemoOptions):
    """What the demo can be asked for."""

    kind: str = option("none", "none, kill, hang, memory, collective, shape or unused")
    rank: int = option(1, "the rank that is broken")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("kind", self.kind, KINDS)
        whole("rank", self.rank, least=0)


@dataclass(frozen=True)
class Result:
    """What an all-reduce of ones gives where nothing is broken."""

    ranks: int
    total: int

    def report(self) -> str:
        """One line."""
        return f"no fault: {self.ranks} ranks added their ones up to {self.total}"


def main(options: Options) -> Result:
    """Break one rank, and let the others wait for it in an all-reduce."""
    rank = launch.init()
    if options.rank >= rank.world and options.kind != "none":
        raise ValueError(
            f"rank must be below the number of ranks {rank.world}, got {options.rank}: "
            "ranks count from 0"
        )
    ones = torch.ones(4, device=rank.device)
    if options.kind == "unused":  # the same on every rank
        _leave_a_parameter_unused(ones)
    elif rank.rank == options.rank:
        KINDS[options.kind](ones)
    dist.all_reduce(ones)
    return Result(rank.world, int(ones[0]))


def _nothing(_ones: Tensor) -> None:
    """The rank goes on as the others do."""


def _kill(_ones: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(_ones: Tensor) -> None:
    while True:
        time.sleep(1)


def _take_memory(ones: Tensor) -> None:
    ones.new_empty(HUGE)


def _call_another_collective(ones: Tensor) -> None:
    dist.broadcast(ones, 0)


def _send_another_shape(ones: Tensor) -> None:
    dist.all_reduce(ones.repeat(1000))


def _leave_a_parameter_unused(ones: Tensor) -> None:
    """DDP waits for the gradient of every parameter, and finds out in the next iteration."""

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            used: Tensor = self.used(x)
            return used

    model = DistributedDataParallel(Forgetful().to(ones.device))
    for _ in range(2):
        model(ones).sum().backward()


KINDS: dict[str, Callable[[Tensor], None]] = {
    "none": _nothing,
    "kill": _kill,
    "hang": _hang,
    "memory": _take_memory,
    "collective": _call_another_collective,
    "shape": _send_another_shape,
    "unused": _leave_a_parameter_unused,
}
