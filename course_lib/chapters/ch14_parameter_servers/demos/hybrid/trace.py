"""The order of one update: hooks of autograd, DDP and RPC write down when they are called.

Each of the four processes has one log; the master collects them.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.chapters.ch14_parameter_servers.events import Event, EventLog
from course_lib.scratch.parameter_server import HybridModel

ASKS, GETS = "asks the server for its rows", "has the rows"
LOSS = "has the loss; backward begins"
DENSE = "gradients of the last dense layer"
STARTS, ENDS = "all dense gradients: the all-reduce starts", "the all-reduce ends"
LEAVES = "gradient of the rows: leaves for the server"
DENSE_STEP, TABLE_STEP = "updates its dense part", "updates the table"
LOOKS_UP, TABLE_GRADIENT = "looks rows up", "adds a trainer's gradient of the table"

_log = EventLog("nobody")  # of this process


def start(process: str) -> EventLog:
    """A new log, of this process."""
    global _log
    _log = EventLog(process)
    return _log


def mark(what: str) -> None:
    """Write an event down."""
    _log.mark(what)


def mark_step() -> None:
    """An optimizer's step, here."""
    mark(TABLE_STEP if _log.process == "server" else DENSE_STEP)


def events() -> list[Event]:
    """All events of this process, for the master to collect."""
    return _log.events


def watch_trainer(model: HybridModel) -> None:
    """Mark what happens to this trainer's model."""
    model.register_forward_pre_hook(lambda *_: mark(ASKS))
    model.dense.register_forward_pre_hook(_rows_arrived)
    last = list(model.dense.parameters())[-1]
    last.register_hook(lambda _: mark(DENSE))
    group = model.dense.process_group
    model.dense.register_comm_hook(group, _all_reduce)


class WatchedTable(nn.EmbeddingBag):
    """A table that marks what happens to it; made on the server, in whose log it writes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.weight.register_hook(lambda _: mark(TABLE_GRADIENT))

    def forward(self, *bags: Any) -> Tensor:
        """Sums of rows."""
        mark(LOOKS_UP)
        return super().forward(*bags)


def _rows_arrived(_: Any, arguments: tuple[Tensor]) -> None:
    mark(GETS)
    arguments[0].register_hook(lambda _: mark(LEAVES))


def _all_reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """What DDP does with a full bucket by itself: the mean over the group's ranks."""
    mark(STARTS)
    mean = bucket.buffer() / group.size()
    work = dist.all_reduce(mean, group=group, async_op=True)

    def ended(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        mark(ENDS)
        return done.value()[0]

    return work.get_future().then(ended)
