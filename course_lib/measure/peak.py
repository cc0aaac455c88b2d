"""The bytes of the storages behind tensors, real or fake."""

import gc
import itertools
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.measure.wire import has_dtensor
from course_lib.validation import whole


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each storage counted once.

    For a DTensor, only this rank's shard counts, with its padding.
    """
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = [t.untyped_storage() for t in local]
    # Identified by the storage object: a fake one has no address, and all on
    # device "meta" have the same address.
    return sum({s._cdata: s.nbytes() for s in storages}.values())


@dataclass
class MemoryLog:
    """Bytes of live storages: at the start, and each change in order."""

    baseline_bytes: int = 0
    changes: list[int] = field(default_factory=list)  # + allocated, - freed

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
        """Number of storages allocated, or resized to more bytes."""
        return sum(change > 0 for change in self.changes)

    def mark(self) -> int:
        """The current position in the log, for `since`."""
        return len(self.changes)

    def since(self, mark: int) -> "MemoryLog":
        """The changes after `mark`; the baseline is the bytes alive then."""
        return MemoryLog(self.timeline[mark], self.changes[mark:])


@contextmanager
def log_memory(before: Iterable[Tensor] = ()) -> Iterator[MemoryLog]:
    """Log each storage that operators allocate inside the block.

    Views and in-place results add nothing. Earlier tensors are ignored unless
    they are in `before`. Resizing a storage to 0 and back, which is how FSDP
    frees it, counts as a free and an allocation. Memory that a library takes
    for itself (gloo's copies, matmul's workspace) is not a tensor and is not
    seen, nor is an allocator's rounding.
    """
    log = MemoryLog()

    def note(_: int, change: int) -> None:
        log.changes.append(change)

    watched = watching(Watch(note), before)
    del before  # they may die inside the block
    with watched:
        log.baseline_bytes = sum(log.changes)
        log.changes.clear()
        yield log


@contextmanager
def watching(watch: "Watch", before: Iterable[Tensor] = ()) -> Iterator[None]:
    """Let `watch` track the tensors in `before`, and all created inside."""
    gc.collect()  # reference cycles would be freed at a random moment
    collects = gc.isenabled()
    gc.disable()
    watch.start(before)
    del before
    try:
        with watch, _resizes_noted(watch):
            yield
    finally:
        watch.ended = True
        if collects:
            gc.enable()


class Watch(TorchDispatchMode):
    """Tracks the storages of all operators' results until they are freed.

    Calls `note(number of the storage, bytes + or -)` for each change.
    """

    def __init__(self, note: Callable[[int, int], None]) -> None:
        super().__init__()
        self.note = note
        self._count = itertools.count()
        self.sizes: dict[int, int] = {}  # bytes of live storages, by id
        self.numbers: dict[int, int] = {}  # of live storages, by id
        self.operator = ""  # the last one that ran
        self.ended = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if has_dtensor(types):
            return NotImplemented  # torch calls again, with plain tensors
        kwargs = kwargs or {}
        older = {id(storage) for storage in _storages((args, kwargs))}
        self.operator = func.overloadpacket.__name__
        result = func(*args, **kwargs)
        lifts = func is torch.ops.aten.lift_fresh.default  # torch.tensor(...)
        for storage in _storages(result):
            if lifts or id(storage) not in older:
                self.add(storage)
        return result

    def start(self, tensors: Iterable[Tensor]) -> None:
        """Track tensors that exist before the first operator."""
        for storage in dict.fromkeys(_storages(list(tensors))):
            self.add(storage)

    def add(self, storage: UntypedStorage) -> None:
        """Log a new storage, and track it until it is freed."""
        key = id(storage)
        if key in self.sizes or self.ended:
            return
        self.sizes[key] = storage.nbytes()
        self.numbers[key] = number = next(self._count)
        weakref.finalize(storage, self.gone, key).atexit = False
        self.change(number, storage.nbytes())

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of the storage behind `tensor`; None if not tracked."""
        return self.numbers.get(id(tensor.untyped_storage()))

    def bytes_beside(self, numbers: Container[int]) -> int:
        """Bytes of the live storages whose numbers are not among `numbers`."""
        live = list(self.sizes.items())
        return sum(
            b for key, b in live if self.numbers.get(key) not in numbers
        )

    def gone(self, key: int) -> None:
        """Log that the storage with this id was freed."""
        self.change(self.numbers.pop(key), -self.sizes.pop(key))

    def resized(self, storage: UntypedStorage, was: int) -> None:
        """Log that a storage of `was` bytes has been resized."""
        key = id(storage)
        if not was:  # new memory, in a storage that may be old
            self.add(storage)
        if key in self.sizes:
            self.change(self.numbers[key], storage.nbytes() - self.sizes[key])
            self.sizes[key] = storage.nbytes()

    def change(self, number: int, change: int) -> None:
        """Log a change of the bytes alive, unless the block has ended."""
        if change and not self.ended:
            self.note(number, change)


def _storages(tensors: Any) -> list[UntypedStorage]:
    leaves = tree_leaves(tensors)
    return [
        leaf.untyped_storage()
        for leaf in leaves
        if isinstance(leaf, Tensor)
        and leaf.layout == torch.strided
        and not leaf.is_meta  # which has a size but no memory
    ]


@contextmanager
def _resizes_noted(watch: Watch) -> Iterator[None]:
    """Notify `watch` of `UntypedStorage.resize_`, which is not an operator."""
    before = UntypedStorage.resize_

    def resize(storage: UntypedStorage, size: int) -> Any:
        was = storage.nbytes()
        result = before(storage, size)
        watch.resized(storage, was)
        return result

    storages: Any = UntypedStorage  # whose methods may be replaced
    storages.resize_ = resize
    try:
        yield
    finally:
        storages.resize_ = before


def largest_batch(fits: Callable[[int], bool], most: int = 2**20) -> int:
    """The largest batch, up to `most`, for which `fits(batch)` is true, or 0.

    Doubles until one does not fit, then bisects: 2·log2(batch) tries. `fits`
    must be monotonic: false for all batches above one that does not fit.
    """
    whole("most", most)
    good, bad = 0, 1
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def fits_on_gpu(step: Callable[[], object]) -> bool:
    """Whether `step()` runs without out-of-memory; empties CUDA's cache."""
    try:
        step()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def peak_bytes(step: Callable[[], object], before: Iterable[Tensor]) -> int:
    """The peak of the bytes of tensors during `step()`, on any device.

    `before` are the weights and all other tensors that exist already. A batch
    fits if its peak is within the memory limit.
    """
    with log_memory(before) as log:
        step()
    return log.peak_bytes
