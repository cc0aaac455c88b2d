"""Follows each tensor's memory from birth to death: peak, allocations."""

import gc
import itertools
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.measure.operators import has_dtensor


@dataclass
class MemoryLog:
    """Bytes of live storages: what was there, and each change in order."""

    baseline_bytes: int = 0
    changes: list[int] = field(default_factory=list)  # + born, - gone

    @property
    def timeline(self) -> list[int]:
        """Bytes at the start, and after each change."""
        return list(
            itertools.accumulate(self.changes, initial=self.baseline_bytes)
        )

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once."""
        return max(self.timeline)

    @property
    def allocations(self) -> int:
        """Storages born, or grown from nothing."""
        return sum(change > 0 for change in self.changes)

    def mark(self) -> int:
        """A place in the log, for `since`."""
        return len(self.changes)

    def since(self, mark: int) -> "MemoryLog":
        """What happened after `mark`; the baseline is what was alive then."""
        return MemoryLog(self.timeline[mark], self.changes[mark:])


@contextmanager
def log_memory(before: Iterable[Tensor] = ()) -> Iterator[MemoryLog]:
    """Log each storage that operators make inside the block.

    Views and in-place results are nothing new. Tensors made earlier are left
    out unless they are in `before`. Resizing a storage to 0 and back, which is
    how FSDP frees it, counts as a death and a birth. Memory that a library
    takes for itself (gloo's copies, matmul's workspace) is not a tensor and is
    not seen, nor is an allocator's rounding.
    """
    gc.collect()  # what a cycle keeps alive would die at a random moment
    collects = gc.isenabled()
    gc.disable()
    log = MemoryLog()
    watch = _Watch(log)
    watch.start(before)
    del before  # they may die inside the block
    try:
        with watch, _resizes_told(watch):
            yield log
    finally:
        watch.ended = True
        if collects:
            gc.enable()


class _Watch(TorchDispatchMode):
    """Sees each operator's tensors, and their end through weak references."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self.log = log
        self.sizes: dict[int, int] = {}  # bytes of live storages, by id
        self.ended = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if has_dtensor(types):
            return NotImplemented  # torch calls again, with plain tensors
        kwargs = kwargs or {}
        older = {id(storage) for storage in _storages((args, kwargs))}
        result = func(*args, **kwargs)
        made = func is torch.ops.aten.lift_fresh.default  # torch.tensor(...)
        for storage in _storages(result):
            if made or id(storage) not in older:
                self.add(storage)
        return result

    def start(self, tensors: Iterable[Tensor]) -> None:
        """Follow what exists already: the baseline."""
        for storage in {tensor.untyped_storage() for tensor in tensors}:
            self.follow(storage)
            self.log.baseline_bytes += storage.nbytes()

    def add(self, storage: UntypedStorage) -> None:
        """Log a storage that is new, and follow it."""
        if id(storage) not in self.sizes:
            self.follow(storage)
            self.note(storage.nbytes())

    def follow(self, storage: UntypedStorage) -> None:
        """Have `gone` called when it dies."""
        self.sizes[id(storage)] = storage.nbytes()
        weakref.finalize(storage, self.gone, id(storage)).atexit = False

    def gone(self, name: int) -> None:
        """A storage has died."""
        self.note(-self.sizes.pop(name))

    def resized(self, storage: UntypedStorage) -> None:
        """A storage has another size now."""
        name = id(storage)
        if name in self.sizes:
            self.note(storage.nbytes() - self.sizes[name])
            self.sizes[name] = storage.nbytes()

    def note(self, change: int) -> None:
        """Write down a change of the bytes alive."""
        if change and not self.ended:
            self.log.changes.append(change)


def _storages(tensors: Any) -> list[UntypedStorage]:
    leaves = tree_leaves(tensors)
    return [
        leaf.untyped_storage()
        for leaf in leaves
        if isinstance(leaf, Tensor)
        and leaf.layout == torch.strided
        and not leaf.is_meta  # it has a size, and no memory
    ]


@contextmanager
def _resizes_told(watch: _Watch) -> Iterator[None]:
    """Tell `watch` of each `resize_` of a storage, which is no operator."""
    before = UntypedStorage.resize_

    def resize(storage: UntypedStorage, size: int) -> Any:
        result = before(storage, size)
        watch.resized(storage)
        return result

    storages: Any = UntypedStorage  # whose methods may be replaced
    storages.resize_ = resize
    try:
        yield
    finally:
        storages.resize_ = before
