"""Logs the collectives and messages that this rank sends."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.trace import SEND, Event, Total, Trace

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

Heard = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


class Listener(TorchDispatchMode):
    """Calls `heard(operator, arguments, options, result)` for each operator.

    A context manager, for this thread. With `inside_dtensors`, operators on
    the local shards of a DTensor are reported instead of those on the DTensor
    itself.
    """

    def __init__(self, heard: Heard, inside_dtensors: bool = False) -> None:
        super().__init__()
        self.heard, self.inside_dtensors = heard, inside_dtensors

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.inside_dtensors and has_dtensor(types):
            return NotImplemented  # torch calls again, with plain tensors
        options = kwargs or {}
        result = func(*args, **options)
        self.heard(func, args, options, result)
        return result


def has_dtensor(types: Any) -> bool:
    """Whether one of these argument types is DTensor."""
    return any(kind.__name__ == "DTensor" for kind in types)


# torch's operators: the collective, and the index of the argument that is the
# whole tensor: an all-gather's output, the input of all others. None: result.
_OPERATORS: dict[str, tuple[str, int | None]] = {
    "c10d.allreduce_": ("all-reduce", 0),
    "c10d._allgather_base_": ("all-gather", 0),
    "c10d.allgather_": ("all-gather", 0),
    "c10d._reduce_scatter_base_": ("reduce-scatter", 1),
    "c10d.reduce_scatter_": ("reduce-scatter", 1),
    "c10d.alltoall_base_": ("all-to-all", 1),
    "c10d.alltoall_": ("all-to-all", 1),
    "c10d.broadcast_": ("broadcast", 0),
    "c10d.reduce_": ("reduce", 0),
    "c10d.send": (SEND, 0),
    "_c10d_functional.all_reduce": ("all-reduce", 0),
    "_c10d_functional.all_reduce_": ("all-reduce", 0),
    "_c10d_functional.all_gather_into_tensor": ("all-gather", None),
    "_c10d_functional.reduce_scatter_tensor": ("reduce-scatter", 0),
    "_c10d_functional.all_to_all_single": ("all-to-all", 0),
    "_c10d_functional.broadcast": ("broadcast", 0),
}

_REDUCTIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")


@dataclass
class WireLog:
    """The calls of this rank, in order, as events whose time is their index.

    `part`: number of ranks in the group. `bytes`: of the whole tensor.
    `label`: torch's name for the group. A message is logged by its sender.
    """

    calls: list[Event] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        """All calls as a Trace, to be compared with the predicted one."""
        return Trace(self.calls)

    def sent(self, axes: Mapping[str, str] | None = None) -> dict[str, Total]:
        """Number of calls and bytes by operation, in order of first call.

        `axes` maps a group's name to its axis, which then precedes the
        operation's name, as in "tp all-reduce".
        """
        return self.trace.sent(axes=axes)

    def add(self, operator: Any, args: Any, _: Any, result: Any) -> None:
        """Log the operator if it communicates in a group of several ranks."""
        known = _OPERATORS.get(str(operator).rpartition(".")[0])
        if known is None:
            return
        what, index = known
        size = _bytes(result if index is None else args[index])
        group = _group(args)
        if group.size() > 1:
            to = None
            if what == SEND:  # (tensors, group, rank in the group, tag)
                to = dist.get_global_rank(group, args[2])
            me, where = dist.get_rank(), (group.size(), to, size)
            self.calls.append(
                Event(
                    len(self.calls), me, what, *where, label=group.group_name
                )
            )


@contextmanager
def log_wire(enabled: bool = True) -> Iterator[WireLog]:
    """Log the collectives that this rank calls, including DDP's and FSDP's.

    A group of one rank sends nothing, so nothing is logged for it.
    """
    log = WireLog()
    with Listener(log.add, inside_dtensors=True) if enabled else nullcontext():
        yield log


def _bytes(tensors: Any) -> int:
    leaves = tree_leaves(tensors)
    return sum(_stored(leaf) for leaf in leaves if isinstance(leaf, Tensor))


def _stored(tensor: Tensor) -> int:
    """Bytes of a tensor; for a sparse one, those of its indices and values.

    A sparse all-reduce replaces them by those of the sum. If gloo has already
    finished, these are the bytes of the sum.
    """
    if tensor.is_sparse:
        return tensor._indices().nbytes + tensor._values().nbytes
    return tensor.nbytes


def _group(args: Any) -> dist.ProcessGroup:
    """The process group in an operator's arguments, as an object or a name."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(argument)
            except RuntimeError:  # another object, such as a ReduceOp
                continue
        if isinstance(argument, str) and argument.upper() not in _REDUCTIONS:
            return _resolve_process_group(cast("GroupName", argument))
    assert dist.group.WORLD is not None  # or there was nothing to log
    return dist.group.WORLD


@dataclass
class BucketLog:
    """Bytes of each bucket's all-reduce, in the order of sending."""

    bucket_bytes: list[int] = field(default_factory=list)

    @property
    def all_reduces(self) -> int:
        """Number of all-reduces."""
        return len(self.bucket_bytes)

    @property
    def total_bytes(self) -> int:
        """Total bytes passed to all-reduce on this rank."""
        return sum(self.bucket_bytes)


def log_buckets(model: DistributedDataParallel) -> BucketLog:
    """Log every gradient bucket that `model` sends from now on.

    Registers a communication hook that calls torch's default one, so nothing
    else changes. A DDP model accepts one hook only: torch raises RuntimeError
    for a second.
    """
    log = BucketLog()

    def hook(group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        log.bucket_bytes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    return log
