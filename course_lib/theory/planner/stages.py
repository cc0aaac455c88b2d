"""Kinds of pipeline stages: those that hold as many layers of each kind and the same ends.

Stages of a kind compute and send alike, and the first of them holds most activations, so a plan
looks at one stage of each kind.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from course_lib.theory.inputs.layout import Layout
from course_lib.theory.inputs.shape import TransformerShape


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

    def held(self, layout: Layout) -> tuple[int, int, int, int]:
        """Dense and expert layers times micro-batches in flight; micro-batches of both ends."""
        in_flight = tuple(layout.in_flight(self.stage).values())
        pairs = list(zip(in_flight, self.chunks, strict=True))
        dense = sum(held * dense for held, (dense, _) in pairs)
        experts = sum(held * experts for held, (_, experts) in pairs)
        return dense, experts, in_flight[0] * self.first, in_flight[-1] * self.last


def stage_kinds(shape: TransformerShape, layout: Layout) -> list[StageKind]:
    """The kinds of stages of one pipeline, by their first stages."""
    chunks, pp = _chunks(shape, layout), layout.pp
    found: dict[tuple, list[int]] = {}
    for stage in range(pp):
        key = (tuple(chunks[stage::pp]), stage == 0, stage == pp - 1)
        found.setdefault(key, []).append(stage)
    return [StageKind(stages[0], len(stages), *key) for key, stages in found.items()]


def _chunks(shape: TransformerShape, layout: Layout) -> list[tuple[int, int]]:
    """Dense and expert layers of each chunk, in the order of the model."""
    dense_layers = shape.dense_layers if shape.experts else shape.layers
    counts, start = [], 0
    for size in layout.chunk_layers(shape):
        dense = min(max(dense_layers - start, 0), size)
        counts.append((dense, size - dense))
        start += size
    return counts


def pad(kinds: Iterable[list[StageKind]]) -> list[list[StageKind]]:
    """Lists made equally long with kinds of no stages, which repeat the first kind."""
    lists = list(kinds)
    width = max(len(kinds) for kinds in lists)
    return [kinds + [replace(kinds[0], count=0)] * (width - len(kinds)) for kinds in lists]
