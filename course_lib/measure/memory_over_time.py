"""The bytes in use at each moment of a training step, by category.

A storage is classified by what it becomes: memory that will be a gradient
counts as a gradient from its allocation on.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.measure.peak import Watch, watching

TEMPORARY = "temporary buffers"
LEFT_OVER = "left over"  # alive after the step, and in no other category
CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "inputs and labels",
    "intermediate results",
    TEMPORARY,
    LEFT_OVER,
)
Tensors = Callable[[], Iterable[Tensor]]


@dataclass(frozen=True)
class MemoryOverTime:
    """Bytes of each category, at the start of a step and after each change.

    For each of these moments, `phases` has the phase and `moments` the last
    operator; `allocated` has the bytes by CUDA's allocator, empty without a
    GPU.
    """

    phases: tuple[str, ...]
    moments: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    allocated: tuple[int, ...] = ()

    @property
    def totals(self) -> tuple[int, ...]:
        """Bytes of all categories together, at each moment."""
        return tuple(map(sum, zip(*self.sizes.values(), strict=True)))

    @property
    def peak_bytes(self) -> int:
        """The largest total at any moment."""
        return max(self.totals)


@dataclass
class StepRecord:
    """Records one step; call `phase` when the next phase begins.

    `gradients()` and `states()` return the gradients and the optimizer's
    states; they are called at the end of each phase.
    """

    gradients: Tensors
    states: Tensors
    now: str = "before"
    kinds: dict[int, str] = field(default_factory=dict)  # by storage
    changes: list[tuple[str, str, int, int]] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = Watch(self.note)

    def phase(self, name: str) -> None:
        """Begin the phase `name`: "forward", "backward" or "update"."""
        self.sort("gradients", self.gradients())
        self.sort("optimizer", self.states())
        self.now = name

    def sort(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Assign these tensors to a category, unless they have one already."""
        for tensor in tensors:
            number = self.watch.number_of(tensor)
            if number is not None:
                self.kinds.setdefault(number, kind)

    def note(self, number: int, change: int) -> None:
        """Log a change, and the bytes that CUDA's allocator counts then."""
        self.changes.append((self.now, self.watch.operator, number, change))
        if torch.cuda.is_available():
            self.allocated.append(torch.cuda.memory_allocated())

    def saved(self, tensor: Tensor) -> Tensor:
        """Saved-tensor hook: in forward, mark all but weights as intermediate.

        Tensors that are recomputed in the backward pass are temporary.
        """
        owner = tensor if tensor._base is None else tensor._base
        if self.now == "forward" and not isinstance(owner, nn.Parameter):
            self.sort("intermediate results", [tensor])
        return tensor

    def settle(self, limit_s: float = 0.3) -> None:
        """Wait until storages without a category are freed: gloo's thread
        holds a message for a moment after its wait() has returned.
        """
        self.phase(self.now)
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self.watch.bytes_beside(self.kinds):
            time.sleep(0.01)

    def result(self) -> MemoryOverTime:
        """The bytes by category after each change, from the first phase on."""
        alive: Counter[int] = Counter()
        for _, _, number, change in self.changes:
            alive[number] += change
        rest = {number: LEFT_OVER for number, size in alive.items() if size}
        kinds = rest | self.kinds
        start = [change for change in self.changes if change[0] == "before"]
        held = Counter(dict.fromkeys(CATEGORIES, 0))
        for _, _, number, change in start:
            held[kinds.get(number, TEMPORARY)] += change
        rows = [("", "start", dict(held))]
        for phase, operator, number, change in self.changes[len(start) :]:
            held[kinds.get(number, TEMPORARY)] += change
            rows.append((phase, operator, dict(held)))
        rows[0] = (rows[min(1, len(rows) - 1)][0], *rows[0][1:])
        return MemoryOverTime(
            tuple(phase for phase, _, _ in rows),
            tuple(moment for _, moment, _ in rows),
            {
                name: tuple(sizes[name] for _, _, sizes in rows)
                for name in CATEGORIES
            },
            tuple(self.allocated[max(len(start) - 1, 0) :]),
        )


@contextmanager
def record_step(
    weights: Iterable[Tensor],
    batch: Iterable[Tensor],
    gradients: Tensors,
    states: Tensors,
    buffers: Iterable[Tensor] = (),
) -> Iterator[StepRecord]:
    """Record a step made of several calls; for one model see `one_step`.

    `buffers` exist before and are temporary, like those that FSDP resizes.
    Call `result()` after the block. Library workspaces are not seen, nor is
    an allocator's rounding. On a GPU the allocator is read as well, which is
    untested: the course was written without one.
    """
    record = StepRecord(gradients, states)
    kept = [*weights], [*batch], [*gradients()], [*states()], [*buffers]
    names = (
        "weights",
        "inputs and labels",
        "gradients",
        "optimizer",
        TEMPORARY,
    )
    with watching(
        record.watch, [tensor for group in kept for tensor in group]
    ):
        for name, tensors in zip(names, kept, strict=True):
            record.sort(name, tensors)
        del kept, tensors
        with saved_tensors_hooks(record.saved, lambda tensor: tensor):
            yield record
        record.phase("after")
    # Finalizers of the weights keep the record alive: it must not hold them.
    record.gradients = record.states = tuple


def one_step(
    model: nn.Module,
    optimizer: Any,
    loss: Callable[[], Tensor],
    batch: Iterable[Tensor] = (),
) -> MemoryOverTime:
    """Record one update of `model`: `loss()`, its backward pass, and a step.

    Gradients are set to None at the end. `optimizer` needs a `state` like
    torch's. See `record_step` for what is not seen.
    """
    weights = [*model.parameters(), *model.buffers()]

    def gradients() -> list[Tensor]:
        return [p.grad for p in model.parameters() if p.grad is not None]

    def states() -> list[Tensor]:
        kept = optimizer.state.values()
        values = [value for state in kept for value in state.values()]
        return [value for value in values if isinstance(value, Tensor)]

    with record_step(weights, batch, gradients, states) as record:
        record.phase("forward")
        result = loss()
        record.phase("backward")
        result.backward()
        del result
        record.phase("update")
        optimizer.step()
        record.phase("update")
        model.zero_grad(set_to_none=True)
    return record.result()
