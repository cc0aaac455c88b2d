"""Data parallelism from hooks: gradients travel while backward runs.

Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, sections 3.2 and 4.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.nn import Parameter

from course_lib.scratch.replicas.buckets import MIB, AllReduce, Bucket, fill
from course_lib.scratch.wire import start_all_reduce


class DDP(nn.Module):
    """`module` on every rank, with gradients that are the mean over ranks.

    Every parameter must take part in the loss; with `find_unused` one that
    does not gets a gradient of zero. `all_reduce` carries the buckets.
    """

    def __init__(
        self,
        module: nn.Module,
        cap_bytes: int = 25 * MIB,
        first_bytes: int = MIB,
        find_unused: bool = False,
        *,
        all_reduce: AllReduce = start_all_reduce,
    ) -> None:
        super().__init__()
        self.module, self.find_unused = module, find_unused
        self.all_reduce = all_reduce
        self.syncing, self.running, self.sent = True, False, 0
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)
        trained = [p for p in module.parameters() if p.requires_grad]
        parts = fill(trained, cap_bytes, first_bytes)
        self.buckets = [Bucket(part) for part in parts]
        for bucket in self.buckets:
            hook = partial(self._ready, bucket)
            for parameter in bucket.views:
                parameter.register_post_accumulate_grad_hook(hook)

    def forward(self, *args: Any) -> Any:
        return self.module(*args)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only add to this rank's gradients."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def _ready(self, bucket: Bucket, parameter: Parameter) -> None:
        """The gradient of `parameter` is complete in `.grad`.

        Also for a weight that two layers share: torch adds both parts first.
        """
        if not self.syncing:
            return
        if not self.running:
            self.running = True
            after_backward(self._finish)
        bucket.take(parameter)
        self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        # One order on all ranks, whatever order their gradients come in: the
        # n-th all-reduce of a rank meets the n-th of the others.
        for bucket in self.buckets[self.sent :]:
            if bucket.waiting:
                return
            bucket.send(self.all_reduce)
            self.sent += 1

    @torch.no_grad()
    def _finish(self) -> None:
        self._treat_unused()
        for bucket in self.buckets:
            bucket.receive()
        self.running, self.sent = False, 0

    def _treat_unused(self) -> None:
        late = {p: b for b in self.buckets for p in b.views if p in b.waiting}
        names = [n for n, p in self.module.named_parameters() if p in late]
        if names and not self.find_unused:
            raise RuntimeError(
                f"no gradient on rank {dist.get_rank()} for "
                f"{', '.join(names)}: the loss does not depend on it, and "
                "ranks would wait for it; use it, or set find_unused=True"
            )
        for parameter, bucket in late.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.take(parameter)
        self._send_full_buckets()


def after_backward(action: Callable[[], None]) -> None:
    """Call `action` when the backward pass that is running has ended.

    torch has no public name for this; its own FSDP calls the same.
    """
    Variable._execution_engine.queue_callback(action)
