"""The bytes at each moment of a training step, by what they are for.

A storage is sorted by what becomes of it: the memory that will be a gradient
is a gradient from its birth.
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
LEFT_OVER = "left over"  # alive after the step, and none of the others
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

    `phases` and `moments` say for each of them which phase it is in and which
    operator ran last. `allocated` is what CUDA's allocator counts at the same
    moments, empty without a GPU.
    """

    phases: tuple[str, ...]
    moments: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    allocated: tuple[int, ...] = ()

    @property
    def totals(self) -> tuple[int, ...]:
        """All categories together."""
        return tuple(map(sum, zip(*self.sizes.values(), strict=True)))

    @property
    def peak_bytes(self) -> int:
        """The most at any moment."""
        return max(self.totals)


@dataclass
class StepRecord:
    """Follows one step; `phase` is called when the next phase begins.

    `gradients` and `states` give the tensors that are gradients and optimizer
    states; they are asked whenever a phase ends.
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
        """From here on it is `name`: "forward", "backward", "update"."""
        self.sort("gradients", self.gradients())
        self.sort("optimizer", self.states())
        self.now = name

    def sort(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """These tensors are of this kind, unless they are something yet."""
        for tensor in tensors:
            number = self.watch.number_of(tensor)
            if number is not None:
                self.kinds.setdefault(number, kind)

    def note(self, number: int, change: int) -> None:
        """Write down a change, and what CUDA's allocator says of it."""
        self.changes.append((self.now, self.watch.operator, number, change))
        if torch.cuda.is_available():
            self.allocated.append(torch.cuda.memory_allocated())

    def saved(self, tensor: Tensor) -> Tensor:
        """What forward keeps is an intermediate result, but for weights.

        What is recomputed in the backward pass is temporary.
        """
        owner = tensor if tensor._base is None else tensor._base
        if self.now == "forward" and not isinstance(owner, nn.Parameter):
            self.sort("intermediate results", [tensor])
        return tensor

    def settle(self, limit_s: float = 0.3) -> None:
        """Wait for what has no category to die: gloo's thread holds a message
        for a moment after it has been waited for.
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
        start = [it for it in self.changes if it[0] == "before"]
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

    `buffers` are there already and used for moments, as what FSDP resizes.
    Ask for `result()` after the block. Library workspaces are not seen, nor is
    an allocator's rounding. On a GPU the allocator is read as well, which has
    not been tested: the course is made without one.
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
    # Weak references to the weights hold the record: it must not hold them.
    record.gradients = record.states = tuple


def one_step(
    model: nn.Module,
    optimizer: Any,
    loss: Callable[[], Tensor],
    batch: Iterable[Tensor] = (),
) -> MemoryOverTime:
    """One update of `model`: `loss()`, its backward pass, and a step.

    Gradients are set to None at its end. `optimizer` has torch's `state`. See
    `record_step` for what is not seen.
    """
    weights = [*model.parameters(), *model.buffers()]

    def gradients() -> list[Tensor]:
        return [p.grad for p in model.parameters() if p.grad is not None]

    def states() -> list[Tensor]:
        kept = [
            it for state in optimizer.state.values() for it in state.values()
        ]
        return [it for it in kept if isinstance(it, Tensor)]

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
