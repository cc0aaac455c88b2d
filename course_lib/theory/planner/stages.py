"""Kinds of pipeline stages: those that hold as many layers of each kind and the same ends.

Stages of a kind compute and send alike, and the first of them holds most activations, so a plan
looks at one stage of each kind.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.shape import TransformerShape


class Held(NamedTuple):
    """What a stage holds before a backward pass, and of what kind that pass is.

    Layers of either kind times micro-batches in flight; micro-batches of both ends; 1 if the pass
    begins with the loss, which frees one of the last; whether its chunk has layers of either kind.
    """

    dense: int
    experts: int
    first: int
    last: int
    freed: int
    next_dense: int
    next_experts: int

    def exceeds(self, other: "Held") -> bool:
        """Whether this moment needs at least as much memory, whatever the parts are worth."""
        kept = self.last - self.freed >= other.last - other.freed
        return kept and all(mine >= its for mine, its in zip(self, other, strict=True))


@dataclass(frozen=True)
class StageKind:
    """`count` stages, the first of them `stage`; `chunks`: (dense, expert) layers by chunk."""

    stage: int
    count: int
    chunks: tuple[tuple[int, int], ...]
    first: bool
    last: bool

    @property
    def dense(self) -> int:
        """Layers with one MLP."""
        return sum(dense for dense, _ in self.chunks)

    @property
    def experts(self) -> int:
        """Layers with routed experts."""
        return sum(experts for _, experts in self.chunks)

    def held(self, layout: Layout) -> list[Held]:
        """The moments at which a stage of this kind may need most; no other exceeds one of them."""
        end = len(self.chunks) - 1
        parts = [
            (*layers, self.first * (place == 0), self.last * (place == end))
            for place, layers in enumerate(self.chunks)
        ]
        following = [(last, dense > 0, experts > 0) for dense, experts, _, last in parts]
        dense = experts = first = last = 0
        found: dict[tuple[int, int, int, tuple[int, int, int]], int] = {}  # most dense layers
        for changes, place in layout.full_moments(self.stage):
            for chunk, count in changes:
                each = parts[chunk]
                dense += count * each[0]
                experts += count * each[1]
                first += count * each[2]
                last += count * each[3]
            rest = experts, first, last, following[place]
            if dense > found.get(rest, -1):
                found[rest] = dense
        moments = [Held(its, *rest[:3], *rest[3]) for rest, its in found.items()]
        most: list[Held] = []
        for moment in sorted(moments, reverse=True):
            if not any(other.exceeds(moment) for other in most):
                most.append(moment)
        return most


def stage_kinds(shape: TransformerShape, layout: Layout) -> list[StageKind]:
    """The kinds of stages of one pipeline, by their first stages."""
    chunks, pp = _chunks(shape, layout), layout.pp
    found: dict[tuple[tuple[tuple[int, int], ...], bool, bool], list[int]] = {}
    for stage in range(pp):
        key = (tuple(chunks[stage::pp]), stage == 0, stage == pp - 1)
        found.setdefault(key, []).append(stage)
    return [StageKind(stages[0], len(stages), *key) for key, stages in found.items()]


def _chunks(shape: TransformerShape, layout: Layout) -> list[tuple[int, int]]:
    """Dense and expert layers of each chunk, in the order of the model."""
    counts = []
    for chunk in range(layout.chunks):
        kinds = {shape.has_experts(layer): n for layer, n in layout.layers_of(shape, chunk)}
        counts.append((kinds.get(False, 0), kinds.get(True, 0)))
    return counts


def pad(kinds: Iterable[list[StageKind]]) -> list[list[StageKind]]:
    """Lists made equally long with kinds of no stages, which repeat the first kind."""
    lists = list(kinds)
    width = max(len(kinds) for kinds in lists)
    return [kinds + [replace(kinds[0], count=0)] * (width - len(kinds)) for kinds in lists]
