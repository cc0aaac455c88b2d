"""Data parallelism with one process per device: gradient buckets and DDP."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn import Parameter

from course_lib.scratch.collectives import (
    Peers,
    ring_all_gather,
    ring_reduce_scatter,
)
from course_lib.scratch.gpt import GPT
from course_lib.scratch.wire import Work, start_all_reduce

# Gradient buckets: few large all-reduces instead of many small ones.
#
# Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, section 3.2.3.


MIB = 2**20
# Starts to sum a tensor over ranks, in place; call `wait()` on the result.
AllReduce = Callable[[Tensor], Work]


def fill(
    parameters: Iterable[Parameter], cap: int, first: int
) -> list[list[Parameter]]:
    """Assign parameters to buckets; a bucket closes at `cap` bytes.

    Parameters are taken last to first, roughly the order in which backward
    produces gradients. The first bucket closes at `first` bytes, so that
    sending starts early. A bucket has one dtype and one device.
    """
    buckets: list[list[Parameter]] = []
    size, limit = 0, min(first, cap)
    last: tuple[torch.dtype, torch.device] | None = None
    for parameter in reversed(list(parameters)):
        kind = (parameter.dtype, parameter.device)
        if not buckets or size >= limit or kind != last:
            limit = cap if buckets else limit
            buckets.append([])
            size, last = 0, kind
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets


class Bucket:
    """Gradients reduced together: one flat tensor, and a view for each."""

    def __init__(self, parameters: list[Parameter]) -> None:
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].new_empty(sum(sizes))  # (elements,)
        pieces = zip(parameters, self.flat.split(sizes), strict=True)
        self.views = {p: piece.view_as(p) for p, piece in pieces}
        self.waiting = set(parameters)  # for their gradients
        self.work: Work | None = None

    def take(self, parameter: Parameter) -> None:
        """Move the gradient, divided by the ranks, into the bucket."""
        if parameter not in self.waiting:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} got a second "
                "gradient in one backward pass: checkpoint its layers with "
                "use_reentrant=False"
            )
        assert parameter.grad is not None  # the hook runs after it is made
        view = self.views[parameter]
        torch.div(parameter.grad, dist.get_world_size(), out=view)
        parameter.grad = view  # the mean of all ranks will arrive here
        self.waiting.remove(parameter)

    def send(self, all_reduce: AllReduce) -> None:
        """Start the sum over ranks, while backward goes on."""
        self.work = all_reduce(self.flat)

    def receive(self) -> None:
        """Wait for the sum and reset for the next backward pass."""
        assert self.work is not None, "send comes first"
        self.work.wait()
        self.waiting = set(self.views)


# DDP's all-reduce as the two halves of a ring, built from messages.


@dataclass
class RingSum:
    """A ring all-reduce of `flat`, in place, for DDP's buckets.

    Nothing is sent before `wait`: there is no background thread, so nothing
    overlaps. All ranks wait for buckets in the same order, so none hangs.
    """

    flat: Tensor
    peers: Peers
    reduce_scatter: Callable[[Tensor, Peers], Tensor] = ring_reduce_scatter
    all_gather: Callable[[Tensor, Peers, int], Tensor] = ring_all_gather

    def wait(self) -> None:
        """Run the ring; returns when `flat` holds the sum."""
        part = self.reduce_scatter(self.flat, self.peers)
        self.flat.copy_(self.all_gather(part, self.peers, len(self.flat)))


# Data parallelism from hooks: gradients are reduced while backward runs.
#
# Li et al. 2020, PyTorch Distributed, arXiv:2006.15704, sections 3.2 and 4.


class DDP(nn.Module):
    """Replicates `module` on every rank and averages gradients over ranks.

    Every parameter must contribute to the loss; with `find_unused`, one that
    does not gets a zero gradient. `all_reduce` reduces the buckets.
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
        """Backward passes inside only accumulate this rank's gradients."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def _ready(self, bucket: Bucket, parameter: Parameter) -> None:
        """Called when the gradient of `parameter` is complete in `.grad`.

        For a weight that two layers share, torch adds both parts first.
        """
        if not self.syncing:
            return
        if not self.running:
            self.running = True
            after_backward(self._finish)
        bucket.take(parameter)
        self._send_full_buckets()

    def _send_full_buckets(self) -> None:
        # The same order on all ranks, whatever order their gradients come in:
        # the n-th all-reduce of a rank matches the n-th of the others.
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
    """Call `action` when the running backward pass has finished.

    torch has no public API for this; its own FSDP makes the same call.
    """
    Variable._execution_engine.queue_callback(action)


# One model over several devices of one rank: naive model parallelism.
#
# Only one device is busy at a time; the gain is memory for a larger model.
# DistributedDataParallel around it: Li et al. 2020, arXiv:2006.15704,
# section 4.1, where it is called a multi-device module.


class Spread(nn.Module):
    """Places the blocks of `model` on `devices` in equal contiguous runs.

    Embedding and head share a weight, so both are on the first device.
    """

    def __init__(
        self, model: GPT, devices: Sequence[torch.device | str]
    ) -> None:
        super().__init__()
        layers = len(model.blocks)
        if layers < len(devices):
            raise ValueError(
                f"devices are {len(devices)}, more than the model's {layers} "
                "layers: give each device at least one layer"
            )
        self.first = devices[0]
        self.places = [
            devices[n * len(devices) // layers] for n in range(layers)
        ]
        self.model = model.to(self.first)
        for block, place in zip(model.blocks, self.places, strict=True):
            block.to(place)

    def forward(self, tokens: Tensor) -> Tensor:  # (batch, sequence)
        model, home = self.model, tokens.device
        tokens = tokens.to(self.first)
        numbers = torch.arange(tokens.shape[1], device=self.first)
        # (batch, sequence, hidden)
        x = model.embedding(tokens) + model.positions(numbers)
        for block, place in zip(model.blocks, self.places, strict=True):
            x = block(x.to(place))
        return model.head(model.norm(x.to(self.first))).to(home)
