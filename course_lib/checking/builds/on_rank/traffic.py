"""On a rank of a check: which collectives were started, and which of them somebody waited for."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from course_lib.measure.wire import WireLog, log_wire

_ASKS = ("wait", "synchronize", "is_completed", "get_future", "block_current_stream")
_GATHERS = (4, 5)  # torch's OpType ALLGATHER, _ALLGATHER_BASE; gloo's reduce-scatter has none


class Traffic:
    """All-gathers and reduce-scatters of a block of code, as `log` has them.

    `waited` counts those that somebody has waited for, or has asked whether they have ended.
    """

    def __init__(self, log: WireLog) -> None:
        self.log, self.asked = log, list[Any]()
        self.waited, self.most = Counter[str](), Counter[str]()  # `most`: under way at once

    def started(self, operation: str) -> int:
        return sum(call.what == operation for call in self.log.calls)

    def under_way(self, operation: str) -> int:
        return max(0, self.started(operation) - self.waited[operation])  # one rank starts none

    def ask(self, work: Any) -> None:
        if all(work is not one for one in self.asked):
            self.asked.append(work)
            gathers = int(work._get_op_type()) in _GATHERS
            operation = "all-gather" if gathers else "reduce-scatter"
            self.most[operation] = max(self.most[operation], self.under_way(operation))
            self.waited[operation] += 1


@contextmanager
def followed_traffic() -> Iterator[Traffic]:
    """The traffic inside; it keeps what is sent alive until its end."""
    with log_wire() as log, ExitStack() as patched:
        traffic = Traffic(log)

        def asking(real: Any) -> Any:
            def ask(work: Any, *given: Any, **named: Any) -> Any:
                traffic.ask(work)
                return real(work, *given, **named)

            return ask

        for name in _ASKS:
            patched.enter_context(patch.object(dist.Work, name, asking(getattr(dist.Work, name))))
        yield traffic


@contextmanager
def in_case(what: str) -> Iterator[None]:
    """Put `what`, as in "in a group of ranks 0 and 2", before what is raised inside."""
    try:
        yield
    except Exception as error:
        error.args = (f"{what}: {error}",)
        raise


def own_group() -> dist.ProcessGroup:
    """All ranks but 1 make one group, and rank 1 one for itself."""
    others = dist.new_group([rank for rank in range(dist.get_world_size()) if rank != 1])
    alone = dist.new_group([1])
    return alone if dist.get_rank() == 1 else others
